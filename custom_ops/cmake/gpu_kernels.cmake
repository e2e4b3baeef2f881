# SPDX-License-Identifier: Apache-2.0
#
# The library of GPU kernels, _tfx_largeout_gpu.so: beside the one with the ops, which loads without
# it. It links nothing but TensorFlow, whose library exports what it needs of CUDA, so that it loads
# where there is no driver.
#
# TFX_CUDA: `auto` builds it where nvcc is found, `on` insists, `off` does not; `on_cpu` compiles the
# kernels as C++, to run on the processor in tests (core/gpu/cuda_on_cpu.h).

set(tfx_least_nvcc 12.0)

function(tfx_find_nvcc found)
  set(${found} OFF PARENT_SCOPE)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPUs to compile for")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE version)
    if(version MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL tfx_least_nvcc)
      set(${found} ON PARENT_SCOPE)
    endif()
  endif()
endfunction()

if(TFX_CUDA STREQUAL "off")
  return()
elseif(NOT TFX_CUDA STREQUAL "on_cpu")
  tfx_find_nvcc(tfx_has_nvcc)
  if(NOT tfx_has_nvcc)
    if(TFX_CUDA STREQUAL "on")
      message(FATAL_ERROR "TFX_CUDA=on needs nvcc ${tfx_least_nvcc} or newer: none was found that works")
    endif()
    message(STATUS "GPU kernels: not built, nvcc ${tfx_least_nvcc} or newer was not found")
    return()
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  message(STATUS "GPU kernels: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")
endif()

file(GLOB tfx_gpu_sources CONFIGURE_DEPENDS core/gpu/*.cu.cc)
add_library(tfx_core_gpu OBJECT ${tfx_gpu_sources})
if(TFX_CUDA STREQUAL "on_cpu")
  set_source_files_properties(${tfx_gpu_sources} PROPERTIES LANGUAGE CXX)
  target_sources(tfx_core_gpu PRIVATE core/gpu/cuda_on_cpu.cc core/gpu/products_on_cpu.cc)
else()
  set_source_files_properties(${tfx_gpu_sources} PROPERTIES LANGUAGE CUDA
    COMPILE_OPTIONS "--expt-relaxed-constexpr")
  # Steps on rows have the bits of the processor's, where contraction is off too, and so have ranges
  # of hashed rows.
  set(tfx_unfused_sources ${tfx_gpu_sources})
  list(FILTER tfx_unfused_sources INCLUDE REGEX "(candidate_update|hash_codes|softmax_update)\\.cu\\.cc$")
  set_property(SOURCE ${tfx_unfused_sources}
    APPEND PROPERTY COMPILE_OPTIONS "--fmad=false")
  target_sources(tfx_core_gpu PRIVATE core/gpu/products_by_cublas.cc)
  set_source_files_properties(core/gpu/products_by_cublas.cc PROPERTIES COMPILE_OPTIONS
    "-isystem;${tf_include}/third_party/gpus/cuda/include;-isystem;${tf_include}/third_party/gpus/cuda/libcudacxx/include")
endif()

list(JOIN CMAKE_CUDA_ARCHITECTURES ", " tfx_gpu_code)  # for errors; none on the processor
set_source_files_properties(core/gpu/error.cu.cc PROPERTIES COMPILE_DEFINITIONS
  TFX_GPU_CODE="${tfx_gpu_code}")

file(GLOB tfx_gpu_kernels CONFIGURE_DEPENDS kernels/*_gpu.cc)
add_library(_tfx_largeout_gpu MODULE core/adam_correction.cc core/largest_eigenvalue.cc ${tfx_gpu_kernels})
target_link_libraries(_tfx_largeout_gpu PRIVATE tfx_core_gpu tfx_shared_kernels)
target_precompile_headers(_tfx_largeout_gpu REUSE_FROM tfx_shared_kernels)
set_source_files_properties(core/adam_correction.cc core/largest_eigenvalue.cc PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON)  # core is free of TensorFlow
target_link_options(_tfx_largeout_gpu PRIVATE -Wl,-z,defs)
set_target_properties(_tfx_largeout_gpu PROPERTIES DEFINE_SYMBOL ""  # as tfx_shared_kernels
  UNITY_BUILD ON PREFIX "" SUFFIX ".so" LIBRARY_OUTPUT_DIRECTORY "${TFX_OUTPUT_DIRECTORY}" LINKER_LANGUAGE CXX)
