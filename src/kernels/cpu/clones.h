// Compiles a kernel once per instruction set; the processor's is chosen when the program is loaded. Bodies are
// MYTHOS_INLINE templates, so that each clone holds its own.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MYTHOS_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define MYTHOS_CLONES
#endif
