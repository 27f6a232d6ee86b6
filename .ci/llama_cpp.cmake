# Included by CMake (CMAKE_PROJECT_INCLUDE) when llama-cpp-python is compiled: build libllama and libggml only.
# llama-cpp-python forces the cache variable LLAMA_BUILD_COMMON; a normal variable takes precedence over it.
set(LLAMA_BUILD_COMMON OFF)
