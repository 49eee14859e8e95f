# Turns a file into a C array: cmake -DINPUT=… -DOUTPUT=… -DNAME=… -P EmbedFile.cmake
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n"
    bytes "${bytes}")
file(WRITE ${OUTPUT}.new "static const unsigned char ${NAME}[] = {\n${bytes}\n};\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
