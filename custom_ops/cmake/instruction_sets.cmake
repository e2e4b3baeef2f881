# SPDX-License-Identifier: Apache-2.0
#
# tfx_add_instruction_sets(target source...): compiles each source once an instruction set and adds the
# objects to target. The macro TFX_ISA names the namespace and the instruction set. Such a source
# must not include TensorFlow, Eigen, or C++ headers with templates or inline functions: the linker
# keeps one copy of an inline function, and it could be one that the processor can't run.
# tfx_add_bfloat16_sets(target source...): the same for the instruction sets that multiply bfloat16.

set(TFX_INSTRUCTION_SETS baseline)
set(TFX_BFLOAT16_SETS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND TFX_INSTRUCTION_SETS avx2 avx512)
  list(APPEND TFX_BFLOAT16_SETS avx512_bf16)
endif()
set(TFX_FLAGS_baseline "")
set(TFX_FLAGS_avx2 -mavx2 -mfma)
set(TFX_FLAGS_avx512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
  -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TFX_FLAGS_baseline -Wno-psabi)  # vectors are passed within one object only
  list(APPEND TFX_FLAGS_avx2 -Wno-psabi)
  # The intrinsics of GCC 12 trip these.
  list(APPEND TFX_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

set(TFX_FLAGS_avx512_bf16 ${TFX_FLAGS_avx512} -mavx512bf16)

function(tfx_add_objects target isa)
  add_library(${target}_${isa} OBJECT ${ARGN})
  target_compile_definitions(${target}_${isa} PRIVATE TFX_ISA=${isa})
  target_compile_options(${target}_${isa} PRIVATE -O3 -fno-math-errno ${TFX_FLAGS_${isa}})
  target_sources(${target} INTERFACE $<TARGET_OBJECTS:${target}_${isa}>)
endfunction()

function(tfx_add_instruction_sets target)
  foreach(isa IN LISTS TFX_INSTRUCTION_SETS)
    tfx_add_objects(${target} ${isa} ${ARGN})
  endforeach()
endfunction()

function(tfx_add_bfloat16_sets target)
  foreach(isa IN LISTS TFX_BFLOAT16_SETS)
    tfx_add_objects(${target} ${isa} ${ARGN})
  endforeach()
endfunction()
