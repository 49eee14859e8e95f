# Turns files into one header: an array each, and a table of path, bytes and count.
# cmake "-DFILES=a;b" -DFOLDER=… -DOUTPUT=… -P EmbedFolder.cmake
set(arrays "")
set(table "")
set(number 0)
foreach(name IN LISTS FILES)
    file(READ ${FOLDER}/${name} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND arrays "static const unsigned char web_file_${number}[] = { ${bytes} };\n")
    set(path "/${name}")
    if(name STREQUAL "openapi.json")
        set(path "/api/v1/openapi.json")
    endif()
    string(APPEND table "    { \"${path}\", web_file_${number}, sizeof(web_file_${number}) },\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT}.new "${arrays}\nstatic const struct {\n    const char *path;\n\
    const unsigned char *bytes;\n    unsigned long count;\n} web_files[] = {\n${table}};\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
