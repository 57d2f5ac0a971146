# Kernels for NVIDIA's cards: each src/device/cuda/kernels/*.cu becomes PTX, which the driver compiles for the card, and
# the PTX becomes a part of the library.  clang does it alone: no CUDA toolkit, no library of NVIDIA's.
#
# The end of a file's name chooses the card, as it chooses the instruction set of a .c:
#   name.cu         sm_80, in PTX 7.5: runs on every card since 2020 (RTX 30, A100).  sm_75 (RTX 20, GTX 16) has no
#                   cp.async and other matrix fragments: each kernel would need a second form.
#                   On cards of 9.0 and newer it is loaded as sm_90 (src/device/cuda/module.c).
#   name_sm90a.cu   sm_90a, in PTX 8.0: H100 and H200 alone, for wgmma and TMA.
# Without clang, everything is built but the kernels.

find_program(LOAM_CUDA_CLANG NAMES clang-19 clang-20 clang-21 DOC "clang for the kernels of NVIDIA's cards")
set(LOAM_CUDA OFF)
if(LOAM_CUDA_CLANG)
  execute_process(COMMAND ${LOAM_CUDA_CLANG} --print-targets OUTPUT_VARIABLE targets ERROR_QUIET)
  if(targets MATCHES "nvptx64")
    set(LOAM_CUDA ON)
  endif()
endif()
if(NOT LOAM_CUDA)
  message(STATUS "No kernels for NVIDIA's cards: clang-19 with NVPTX was not found")
endif()

set(LOAM_CUDA_FLAGS -x cuda --cuda-device-only -S -O3 -std=c++17 -ffp-contract=off -nocudainc -nocudalib
  --cuda-path=/nonexistent -Wall -Wextra -Werror -Wno-unused-function -I${CMAKE_SOURCE_DIR}/src)
set(LOAM_CUDA_FLAGS_80 --cuda-gpu-arch=sm_80 -Xclang -target-feature -Xclang +ptx75)
set(LOAM_CUDA_FLAGS_90 --cuda-gpu-arch=sm_90a -Xclang -target-feature -Xclang +ptx80)

# loam_cuda_images(TARGET): the kernels of this folder's cuda/kernels, and src/device/cuda/images.h's table of them.
function(loam_cuda_images target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/*.cu)
  set(missing "NULL")
  if(NOT LOAM_CUDA)
    set(sources)
    set(missing "\"this build has no kernels: there was no clang-19\"")
  endif()
  set(blobs)
  set(rows)
  set(objects)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    set(capability 80)
    if(name MATCHES "_sm90a$")
      set(capability 90)
    endif()
    set(ptx ${folder}/${name}.ptx)
    add_custom_command(OUTPUT ${ptx}
      COMMAND ${LOAM_CUDA_CLANG} ${LOAM_CUDA_FLAGS} ${LOAM_CUDA_FLAGS_${capability}} -MD -MF ${ptx}.d -MT ${ptx}
        ${source} -o ${ptx}
      DEPENDS ${source} DEPFILE ${ptx}.d COMMENT "PTX of ${name}.cu" VERBATIM)
    list(APPEND objects ${ptx})
    string(APPEND blobs "EMBED(${name}_ptx, \"${ptx}\");\n")
    string(APPEND rows "    {\"${name}\", ${capability}, ${name}_ptx},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${folder}/images.c @ONLY CONTENT [=[
#include "device/cuda/images.h"

#define EMBED(symbol, path)                                                                       \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.popsection\n");  \
    extern const char symbol[] __attribute__((visibility("hidden")))

@blobs@
const struct cuda_image cuda_images[] = {
@rows@    {NULL, 0, NULL}};
const size_t cuda_image_count = sizeof cuda_images / sizeof cuda_images[0] - 1;
const char *const cuda_images_missing = @missing@;
]=])
  set_source_files_properties(${folder}/images.c PROPERTIES OBJECT_DEPENDS "${objects}")
  target_sources(${target} PRIVATE ${folder}/images.c)
  # The same for tests, as a file beside them.
  add_library(cuda_images_shared SHARED EXCLUDE_FROM_ALL ${folder}/images.c)
  target_include_directories(cuda_images_shared PRIVATE ${CMAKE_SOURCE_DIR}/src)
  set_target_properties(cuda_images_shared PROPERTIES C_VISIBILITY_PRESET default)
endfunction()
