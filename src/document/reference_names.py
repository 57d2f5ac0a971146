"""Writes a C table of HTML's named character references (html.entities.html5), sorted by name."""
import html.entities
import sys


def quoted(text):
    return '"' + "".join("\\%03o" % byte for byte in text.encode()) + '"'


with open(sys.argv[1], "w") as out:
    out.write('#include "document/reference_names.h"\n\nconst struct reference_name reference_names[] = {\n')
    names = sorted(html.entities.html5.items(), key=lambda item: item[0].encode())
    for name, text in names:
        out.write('    {"%s", %s},\n' % (name, quoted(text)))
    out.write("};\nconst size_t reference_name_count = %d;\n" % len(names))
