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

option(FIRE_WERROR "Treat warnings as errors" ON)
set(FIRE_SANITIZE "" CACHE STRING "Sanitizers to build with: address;undefined, or thread")

add_library(fire_warnings INTERFACE)
target_compile_options(fire_warnings INTERFACE
    -Wall -Wextra -Wswitch-enum -Wimplicit-fallthrough -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes -Wpointer-arith -Wvla -Wwrite-strings
    $<$<BOOL:${FIRE_WERROR}>:-Werror>)

foreach(sanitizer IN LISTS FIRE_SANITIZE)
    add_compile_options(-fsanitize=${sanitizer} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${sanitizer})
endforeach()
