// A tokenizer by path or address.
#pragma once

#include "data/options.h"
#include "storage/storage.h"
#include "text/tokenizer.h"

#include <string>

namespace mythos {

/// A file (see Tokenizer::load), `hf://OWNER/NAME[@REV]` (its tokenizer.json), `hf://OWNER/NAME[@REV]/FILE`, or another
/// address of a file. Throws Error naming it.
Tokenizer load_tokenizer(const std::string& where, Storage& storage);

/// The tokenizer for a loader.
Encoder encoder_of(const Tokenizer& tokenizer);

}  // namespace mythos
