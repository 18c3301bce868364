# The device's side: MYTHOS_CUDA=ON compiles the kernels with nvcc and links LibTorch's CUDA libraries.
#
#   CMAKE_CUDA_ARCHITECTURES   default: those of data centre cards from the A100 on, as far as nvcc knows them
#   MYTHOS_CUTLASS             CUTLASS's headers (the include folder), for grouped GEMMs where LibTorch has none of its own;
#                              default: the wheel nvidia-cutlass under .deps/ (scripts/setup --cuda). May be absent.
if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real)  # for enable_language's own check; the list follows from nvcc's version
  set(choose_architectures ON)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(choose_architectures)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real 120)
  endif()
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
set(CMAKE_CUDA_FLAGS_RELEASE "-std=c++20 -O3 -lineinfo")
set(CMAKE_CUDA_FLAGS_DEBUG "-std=c++20 -O1 -g -lineinfo")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")

foreach(library libtorch_cuda libc10_cuda)
  if(NOT EXISTS "${torch_dir}/lib/${library}.so")
    message(FATAL_ERROR "${torch_dir}/lib/${library}.so is not there: LibTorch must be a build with CUDA "
                        "(scripts/setup --cuda fetches it; or set MYTHOS_LIBTORCH to an installed torch)")
  endif()
endforeach()

set(MYTHOS_CUTLASS "$ENV{MYTHOS_CUTLASS}" CACHE PATH "CUTLASS's include folder")
set(cutlass_dir "${MYTHOS_CUTLASS}")
if(NOT cutlass_dir)
  set(cutlass_dir "${PROJECT_SOURCE_DIR}/.deps/site/cutlass_library/source/include")
endif()
if(NOT EXISTS "${cutlass_dir}/cutlass/cutlass.h")
  message(STATUS "no CUTLASS at ${cutlass_dir}: compute capabilities other than 9.0 and 10.0 multiply expert by expert")
  set(cutlass_dir "")
endif()

# CMake before 3.26 does not know that nvcc speaks C++20, and asks nvcc for what it asks the C++ compiler for: see the flags.
function(only_cuda target)
  set_property(TARGET ${target} PROPERTY CXX_STANDARD)
  set_property(TARGET ${target} PROPERTY CXX_STANDARD_REQUIRED)
  set_property(TARGET ${target} PROPERTY CXX_EXTENSIONS)
endfunction()

# The kernels alone, without LibTorch: a second or two a file.
function(mythos_cuda_kernels target)
  file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu")
  list(FILTER kernels EXCLUDE REGEX "/grouped_gemm.cu$")
  add_library(mythos_device STATIC ${kernels})
  only_cuda(mythos_device)
  target_include_directories(mythos_device PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(mythos_device PRIVATE $<$<BOOL:${MYTHOS_WERROR}>:-Werror=all-warnings>)
  target_link_libraries(mythos_device PRIVATE CUDA::cudart)
  if(cutlass_dir)
    # CUTLASS's templates for 8.0 serve what has no grouped GEMM of LibTorch's; they run on every later device.
    add_library(mythos_device_cutlass STATIC "${PROJECT_SOURCE_DIR}/src/kernels/cuda/grouped_gemm.cu")
    only_cuda(mythos_device_cutlass)
    target_include_directories(mythos_device_cutlass PRIVATE "${PROJECT_SOURCE_DIR}/src")
    target_include_directories(mythos_device_cutlass SYSTEM PRIVATE "${cutlass_dir}")
    target_link_libraries(mythos_device PUBLIC mythos_device_cutlass)
  endif()
  # Only what speaks with the device's library is compiled otherwise than without it.
  file(GLOB tensors CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cpp")
  set_property(SOURCE ${tensors} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_DEFINITIONS
    MYTHOS_CUDA $<$<BOOL:${cutlass_dir}>:MYTHOS_CUTLASS>)
  set_property(SOURCE ${tensors} TARGET_DIRECTORY ${target} APPEND PROPERTY INCLUDE_DIRECTORIES ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PUBLIC mythos_device)
endfunction()
