// Compiles a kernel once per instruction set; the processor's is chosen when the program is loaded. Bodies are
// MYTHOS_INLINE templates, so that each clone holds its own. Levels of x86-64, not names of processors: a clone for
// "haswell" is chosen on Intel processors only.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MYTHOS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MYTHOS_CLONES
#endif
