# SPDX-License-Identifier: Apache-2.0
#
# Asks the Python that will load the library for its TensorFlow: sets TFX_TF_VERSION and the interface
# target tensorflow_framework (compile flags, system include folders, libraries).
# TFX_PYTHON_ENVIRONMENT: options of `cmake -E env` for that Python.

find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env ${TFX_PYTHON_ENVIRONMENT} TF_CPP_MIN_LOG_LEVEL=3
    CUDA_VISIBLE_DEVICES=
    "${Python3_EXECUTABLE}" -c
    "import tensorflow as tf; print(tf.__version__, tf.sysconfig.get_include(), ';'.join(f for f in tf.sysconfig.get_compile_flags() if not f.startswith(('-I', '--std'))), ';'.join(tf.sysconfig.get_link_flags()), sep='\\n')"
  OUTPUT_VARIABLE tf_facts
  ERROR_VARIABLE tf_error
  RESULT_VARIABLE tf_result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT tf_result EQUAL 0)
  message(FATAL_ERROR "TensorFlow can't be imported by ${Python3_EXECUTABLE}: "
    "pass -DPython3_EXECUTABLE=... of an environment that has it.\n${tf_error}")
endif()

# Lists use ';', so take the lines apart without letting CMake split them.
string(REGEX MATCH "^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$" _ "${tf_facts}")
set(TFX_TF_VERSION "${CMAKE_MATCH_1}")
set(tf_include "${CMAKE_MATCH_2}")
set(tf_compile_flags "${CMAKE_MATCH_3}")
set(tf_link_flags "${CMAKE_MATCH_4}")
message(STATUS "TensorFlow ${TFX_TF_VERSION} in ${tf_include}")

add_library(tensorflow_framework INTERFACE)
target_include_directories(tensorflow_framework SYSTEM INTERFACE "${tf_include}")
target_compile_options(tensorflow_framework INTERFACE ${tf_compile_flags})
target_link_libraries(tensorflow_framework INTERFACE ${tf_link_flags})
