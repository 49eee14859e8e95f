# FireBuild: what every target of the project shares: language level, warnings, sanitizers, folders.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # uv.h needs them
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

# Where ccache is installed it is used: a second clone on the same machine builds in seconds.
find_program(FIRE_CCACHE ccache)
mark_as_advanced(FIRE_CCACHE)
if(FIRE_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${FIRE_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()

# An installed program finds libfire.so beside it, wherever the prefix is moved to.
file(RELATIVE_PATH fire_bin_to_lib
    ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN/${fire_bin_to_lib}")

option(FIRE_WERROR "Treat warnings as errors" ON)
option(FIRE_FUZZ "Build the fuzzers of tests/fuzz; needs clang" OFF)
set(FIRE_SANITIZE "" CACHE STRING "Sanitizers to build with: address;undefined, or thread")

# gcc's flow analysis sees the checks that sanitizers insert and warns about paths they rule out,
# so warnings are errors in every build but those.
add_library(fire_warnings INTERFACE)
target_compile_options(fire_warnings INTERFACE
    -Wall -Wextra -Wswitch-enum -Wimplicit-fallthrough -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes -Wpointer-arith -Wvla -Wwrite-strings)
if(FIRE_WERROR AND NOT FIRE_SANITIZE)
    target_compile_options(fire_warnings INTERFACE -Werror)
endif()

foreach(sanitizer IN LISTS FIRE_SANITIZE)
    add_compile_options(-fsanitize=${sanitizer} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${sanitizer})
endforeach()

if(FIRE_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR
            "FIRE_FUZZ needs clang's libFuzzer: configure with cmake --preset fuzz")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link) # coverage in every library a fuzzer links
endif()
