// An evaluation as one HTML page.
#pragma once

#include "infer/eval_report.h"

#include <string>

namespace mythos {

/// Self-contained: pictures are inline SVG, nothing is fetched, no script is run, all text is escaped. Readable in
/// light and dark. The loss by loop count with its standard errors, rho(A)'s histogram, halting, the load of the
/// experts by loop, tasks and samples, as far as the report has them.
std::string eval_page(const EvalReport& report);

}  // namespace mythos
