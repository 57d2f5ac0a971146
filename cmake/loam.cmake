# How every library and test of loam is built: one set of warnings, one set of
# hardening flags, and the instruction set of a file from the end of its name.

set(LOAM_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
  -Wmissing-prototypes -Wvla -Wformat=2 -Wimplicit-fallthrough -Werror)

set(LOAM_HARDENING -fstack-protector-strong -fstack-clash-protection -fno-delete-null-pointer-checks
  -ftrivial-auto-var-init=zero)
if(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 16)
  # Clang asks for this before it zeroes; from 16 on it no longer does.
  list(APPEND LOAM_HARDENING -enable-trivial-auto-var-init-zero-knowing-it-will-be-removed-from-clang)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
  list(APPEND LOAM_HARDENING -fcf-protection=full)
endif()
if(CMAKE_BUILD_TYPE MATCHES "Rel" AND NOT LOAM_SANITIZE)
  list(APPEND LOAM_HARDENING -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()

if(LOAM_SANITIZE)
  add_compile_options(-fsanitize=${LOAM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOAM_SANITIZE})
endif()
if(LOAM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_compile_definitions(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
endif()
add_link_options(-Wl,-z,relro,-z,now,-z,noexecstack,--as-needed)

# What tests are compiled with in place of -O2, in half of its time: the libraries that they call compute, they check.
# CMAKE_BUILD_TYPE's option stands in front of it.  Sanitizers see what gcc's optimiser makes of a test, too.
set(LOAM_TESTS_OPTIMISED)
if(CMAKE_BUILD_TYPE MATCHES "Rel" AND NOT LOAM_SANITIZE)
  set(LOAM_TESTS_OPTIMISED -Og)
endif()

# Instruction set by file name: foo_avx2.c is compiled for AVX2 and only run
# where the processor has it (platform/cpu.h).
set(LOAM_ISA_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(LOAM_ISA_avx512 ${LOAM_ISA_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
set(LOAM_ISA_avx512bf16 ${LOAM_ISA_avx512} -mavx512bf16)
set(LOAM_ISA_avx512popcnt ${LOAM_ISA_avx512} -mavx512vpopcntdq -mavx512bitalg)
set(LOAM_ISA_amx ${LOAM_ISA_avx512bf16} -mamx-tile -mamx-bf16)
set(LOAM_ISA_dotprod -march=armv8.2-a+dotprod) # _neon needs no flags: every AArch64 has it

function(loam_isa_flags)
  foreach(source IN LISTS ARGN)
    foreach(isa avx2 avx512 avx512bf16 avx512popcnt amx)
      if(source MATCHES "_${isa}\\.c$")
        if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
          set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${LOAM_ISA_${isa}}")
        endif()
      endif()
    endforeach()
    if(source MATCHES "_dotprod\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${LOAM_ISA_dotprod}")
    endif()
  endforeach()
endfunction()

# loam_library(NAME DEPENDS a b SYSTEM pkgs...): every .c of the folder (and of
# its subfolders) becomes the library loam_NAME.  DEPENDS names the folders of
# src/ that it may include; tools/check_includes.sh holds it to that.
function(loam_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SYSTEM" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  list(FILTER sources EXCLUDE REGEX "/main\\.c$")
  if(name STREQUAL "lab") # its methods are objects of their own, its quantisers a library
    list(FILTER sources EXCLUDE REGEX "/(methods|quantize)/")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
    list(FILTER sources EXCLUDE REGEX "_(avx2|avx512|avx512bf16|avx512popcnt|amx)\\.c$")
  endif()
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    list(FILTER sources EXCLUDE REGEX "_(neon|dotprod)\\.c$")
  endif()
  if(NOT sources) # a folder whose first file is still to come
    add_library(loam_${name} INTERFACE)
    return()
  endif()
  loam_isa_flags(${sources})
  add_library(loam_${name} STATIC ${sources})
  target_include_directories(loam_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(loam_${name} PRIVATE _GNU_SOURCE)
  target_compile_options(loam_${name} PRIVATE ${LOAM_WARNINGS} ${LOAM_HARDENING})
  if(name STREQUAL "kernels")
    # Zeroing every local costs more than it protects in a loop over tiles.
    # No contraction: a variant says where it fuses, so that results do not hang on the compiler.
    # gcc follows variables through unrolled tiles for as long as it takes to compile them; only debug information is the better for it.
    target_compile_options(loam_${name} PRIVATE -O3 -ftrivial-auto-var-init=uninitialized -ffp-contract=off
      $<$<C_COMPILER_ID:GNU>:-fno-var-tracking>)
  endif()
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(loam_${name} PUBLIC loam_${dep})
  endforeach()
  target_link_libraries(loam_${name} PUBLIC Threads::Threads m)
  foreach(package IN LISTS ARG_SYSTEM)
    pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
    target_link_libraries(loam_${name} PRIVATE PkgConfig::${package})
  endforeach()
endfunction()

# loam_program(NAME main.c): in the build folder itself.
function(loam_program name source)
  add_executable(${name} ${source})
  target_compile_options(${name} PRIVATE ${LOAM_WARNINGS} ${LOAM_HARDENING} -fPIE)
  target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
  target_link_options(${name} PRIVATE -pie)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# loam_test_shared(OUT SOURCE): the objects of a file of tests/ that several tests link, compiled once, as a target.
function(loam_test_shared out source)
  get_filename_component(path ${source} ABSOLUTE)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/tests ${path})
  string(MAKE_C_IDENTIFIER "tests_${name}" target)
  set(${out} ${target} PARENT_SCOPE)
  if(TARGET ${target})
    return()
  endif()
  add_library(${target} OBJECT ${path})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE
    LOAM_SOURCE_DIR="${CMAKE_SOURCE_DIR}" LOAM_BINARY="$<TARGET_FILE:loam>" LOAM_LAB_BINARY="$<TARGET_FILE:loam-lab>")
  target_compile_options(${target} PRIVATE ${LOAM_WARNINGS} ${LOAM_TESTS_OPTIMISED})
  target_link_libraries(${target} PRIVATE PkgConfig::cmocka)
endfunction()

# loam_test_images(TARGET): a test does not hold the kernels' PTX, 22 MB, but finds them in a file that all tests share: half
# of what a linker computed of such a test was to copy them, and 70 tests had 1.6 GB.  Named first, and by force: a symbol
# that is there is not looked for in libloam_device.a.
function(loam_test_images target)
  target_link_options(${target} PRIVATE -Wl,--no-as-needed,$<TARGET_FILE:cuda_images_shared>,--as-needed)
  set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH $<TARGET_FILE_DIR:cuda_images_shared>)
  add_dependencies(${target} cuda_images_shared)
endfunction()

# loam_test(NAME [SEEDED] [CROSSING] [REAL_MODEL] [LATE_IO] SOURCES f.c... DEPENDS folder... [TIMEOUT seconds]
#           [LABELS l...] [COST seconds])
# SOURCES that are not named test_* or emulated_* are compiled once for all tests, without this one's DEFINES.
# Exit 77 means skipped, with the reason on standard output.  SEEDED: it draws from tests/seed.h, and `./do fuzz` runs it
# with many seeds: loam_seeded_tests writes down which those are.
# A test has one processor, so that tests that run side by side do not spin for threads whose processor the other one has.
# CROSSING: it has all of them, since it is about what threads do at the same time.  Those have the label `threads`, as
# others that are worth `./do tsan`; loam_threads_tests builds what has it.
# REAL_MODEL: it looks for the model of `./do model` (tests/real_model.h) and passes without it as well.
# LATE_IO: what its I/O queues read and write ends in an order that is drawn (tests/platform/late_io.c), not as io_uring does.
# COST: of the longest, so that they begin first and none of them runs alone at the end.
function(loam_test name)
  cmake_parse_arguments(ARG "SEEDED;CROSSING;REAL_MODEL;LATE_IO" "TIMEOUT;COST" "SOURCES;DEPENDS;LABELS;SYSTEM;DEFINES" ${ARGN})
  set(shared ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/watch.c)
  if(ARG_LATE_IO)
    list(APPEND shared ${CMAKE_SOURCE_DIR}/tests/platform/late_io.c)
  endif()
  list(FILTER ARG_SOURCES INCLUDE REGEX "(^|/)(test|emulated)_[^/]*$")
  list(REMOVE_ITEM shared ${ARG_SOURCES})
  add_executable(test_${name} ${ARG_SOURCES})
  foreach(source IN LISTS shared)
    loam_test_shared(objects ${source})
    target_link_libraries(test_${name} PRIVATE ${objects})
  endforeach()
  if(ARG_LATE_IO)
    target_link_options(test_${name} PRIVATE -Wl,--wrap=io_uring_engine_create,--wrap=documents_measure)
  endif()
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE _GNU_SOURCE ${ARG_DEFINES}
    LOAM_SOURCE_DIR="${CMAKE_SOURCE_DIR}" LOAM_BINARY="$<TARGET_FILE:loam>" LOAM_LAB_BINARY="$<TARGET_FILE:loam-lab>")
  # As for kernels: with var-tracking gcc takes minutes for those that are emulated.
  target_compile_options(test_${name} PRIVATE ${LOAM_WARNINGS} ${LOAM_TESTS_OPTIMISED}
    $<$<C_COMPILER_ID:GNU>:-fno-var-tracking>)
  loam_isa_flags(${ARG_SOURCES})
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(test_${name} PRIVATE loam_${dep})
  endforeach()
  target_link_libraries(test_${name} PRIVATE loam_quantize) # for the weights of tests' models
  if(ARG_DEPENDS MATCHES "plan|engine|measure|generate|server|lab") # tests see the lab's methods, too
    target_link_libraries(test_${name} PRIVATE loam_lab_methods)
  endif()
  foreach(package IN LISTS ARG_SYSTEM)
    pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
    target_link_libraries(test_${name} PRIVATE PkgConfig::${package})
  endforeach()
  target_link_libraries(test_${name} PRIVATE PkgConfig::cmocka)
  # Without those that go to machines with a card (tools/gpu_pack.sh), as they are.
  if(ARG_DEPENDS MATCHES "device|cache|attention|model|plan|engine|measure|generate|api|explain|server|cli|lab"
     AND NOT "${ARG_DEFINES}" MATCHES "FAKE_LIBRARY")
    loam_test_images(test_${name})
  endif()
  if(ARG_SEEDED)
    target_compile_definitions(test_${name} PRIVATE LOAM_TEST_SEEDED)
    list(APPEND ARG_LABELS seeded)
    set_property(GLOBAL APPEND PROPERTY LOAM_SEEDED_TESTS "${name} $<TARGET_FILE:test_${name}>")
  endif()
  if(ARG_REAL_MODEL)
    target_compile_definitions(test_${name} PRIVATE
      REAL_MODEL="${CMAKE_SOURCE_DIR}/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    list(APPEND ARG_LABELS real_model)
  endif()
  if(ARG_CROSSING)
    list(APPEND ARG_LABELS threads)
  endif()
  if("threads" IN_LIST ARG_LABELS)
    set_property(GLOBAL APPEND PROPERTY LOAM_THREADS_TESTS test_${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600) # four times what the longest takes beside eight busy programs on two cores
  endif()
  if(LOAM_SANITIZE OR CMAKE_CROSSCOMPILING)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 10")
  endif()
  math(EXPR watch "${ARG_TIMEOUT} * 9 / 10")
  add_test(NAME ${name} COMMAND test_${name} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT LOAM_TEST_WATCH=${watch})
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
  if(NOT ARG_CROSSING)
    set_tests_properties(${name} PROPERTIES PROCESSOR_AFFINITY ON)
  endif()
endfunction()

# loam_test_again(NAME SEED): the test NAME with another seed, as NAME_seed_SEED.
function(loam_test_again name seed)
  get_test_property(${name} TIMEOUT timeout)
  get_test_property(${name} ENVIRONMENT environment)
  get_test_property(${name} PROCESSOR_AFFINITY affinity)
  add_test(NAME ${name}_seed_${seed} COMMAND test_${name} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${name}_seed_${seed} PROPERTIES
    SKIP_RETURN_CODE 77 TIMEOUT ${timeout} ENVIRONMENT "${environment};LOAM_TEST_SEED=${seed}"
    PROCESSOR_AFFINITY ${affinity})
endfunction()

# loam_seeded_tests(): seeded_tests.txt in the build folder, a line "NAME PROGRAM" for each.
function(loam_seeded_tests)
  get_property(tests GLOBAL PROPERTY LOAM_SEEDED_TESTS)
  list(JOIN tests "\n" lines)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/seeded_tests.txt CONTENT "${lines}\n")
endfunction()

# loam_threads_tests(): the target threads_tests, what `./do tsan` builds beside the programs.
function(loam_threads_tests)
  get_property(tests GLOBAL PROPERTY LOAM_THREADS_TESTS)
  add_custom_target(threads_tests DEPENDS ${tests})
endfunction()

# loam_fuzzer(NAME SOURCES f.c DEPENDS folder...): with LOAM_FUZZ a libFuzzer
# binary fuzz_NAME; always a test that replays the corpus tests/fuzz/corpus/NAME.
function(loam_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;SYSTEM" ${ARGN})
  if(LOAM_FUZZ)
    add_executable(fuzz_${name} ${ARG_SOURCES})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(fuzz_${name} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    add_test(NAME fuzz_replay_${name}
      COMMAND fuzz_${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(fuzz_replay_${name} PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77)
  endif()
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(fuzz_${name} PRIVATE _GNU_SOURCE)
  target_compile_options(fuzz_${name} PRIVATE ${LOAM_WARNINGS} ${LOAM_TESTS_OPTIMISED} -Wno-missing-prototypes)
  foreach(dep IN LISTS ARG_DEPENDS)
    target_link_libraries(fuzz_${name} PRIVATE loam_${dep})
  endforeach()
endfunction()
