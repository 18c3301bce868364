# Defines the imported target mythos::torch. Looks at MYTHOS_LIBTORCH=DIR (a LibTorch folder or an installed torch
# package), then .deps/site/torch (scripts/setup), then the torch of `python3`. Libraries are named directly: the
# wheel's own CMake config wants a CUDA toolkit even for the CPU.
set(MYTHOS_LIBTORCH "$ENV{MYTHOS_LIBTORCH}" CACHE PATH "folder of LibTorch (holds include/ and lib/)")
set(torch_dir "${MYTHOS_LIBTORCH}")
if(NOT torch_dir AND EXISTS "${PROJECT_SOURCE_DIR}/.deps/site/torch/lib")
  set(torch_dir "${PROJECT_SOURCE_DIR}/.deps/site/torch")
endif()
if(NOT torch_dir)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so" OR NOT EXISTS "${torch_dir}/include/ATen/ATen.h")
  message(FATAL_ERROR "LibTorch not found (looked at '${torch_dir}'): run scripts/setup, or set MYTHOS_LIBTORCH to a "
                      "folder with include/ATen/ATen.h and lib/libtorch_cpu.so")
endif()
set(torch_version "unknown")
if(EXISTS "${torch_dir}/version.py")
  file(STRINGS "${torch_dir}/version.py" line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${line}")
elseif(EXISTS "${torch_dir}/build-version")
  file(READ "${torch_dir}/build-version" line)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${line}")
endif()
if(torch_version MATCHES "[0-9]" AND (torch_version VERSION_LESS 2.11 OR torch_version VERSION_GREATER_EQUAL 2.16))
  message(WARNING "LibTorch ${torch_version} at ${torch_dir}: 2.11 to 2.15 are the versions this project is tested with")
endif()
message(STATUS "LibTorch ${torch_version} at ${torch_dir}")

add_library(mythos_torch INTERFACE)
add_library(mythos::torch ALIAS mythos_torch)
target_include_directories(mythos_torch SYSTEM INTERFACE
  "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
target_link_libraries(mythos_torch INTERFACE
  "${torch_dir}/lib/libtorch_cpu.so" "${torch_dir}/lib/libc10.so")
# at::parallel_for is a header's template and runs on one thread where the including file knows no OpenMP. The runtime is
# the one LibTorch brings: both ask for libgomp.so.1.
target_compile_options(mythos_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_options(mythos_torch INTERFACE $<$<LINK_LANGUAGE:CXX>:-fopenmp>)
# LibTorch is built so, and some of its classes have other members without.
target_compile_definitions(mythos_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:NDEBUG>)
# The wheel's libraries find their CUDA runtime stubs beside the package, by their own RPATH.
target_link_options(mythos_torch INTERFACE "-Wl,--allow-shlib-undefined")
if(MYTHOS_CUDA)
  target_link_libraries(mythos_torch INTERFACE
    "-Wl,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so" "${torch_dir}/lib/libc10_cuda.so")
endif()

# fmt: the headers LibTorch brings, header-only, so that the program has one version of it.
add_library(mythos_fmt INTERFACE)
add_library(mythos::fmt ALIAS mythos_fmt)
target_include_directories(mythos_fmt SYSTEM INTERFACE "${torch_dir}/include")
target_compile_definitions(mythos_fmt INTERFACE FMT_HEADER_ONLY=1)
