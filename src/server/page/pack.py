#!/usr/bin/env python3
"""pack.py PAGE.html STYLE.css SCRIPT.js... OUTPUT.c: the page as one gzipped file in a C array, and its content security
policy, which allows this style and these scripts, put together to one, by their hashes and nothing else."""
import base64
import gzip
import hashlib
import sys

PAGE_BYTES_MAX = 64 << 10


def source_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def main():
    page, style, *scripts = (open(path, encoding="utf-8").read() for path in sys.argv[1:-1])
    script = "\n".join(scripts)
    page = page.replace("<!-- STYLE -->", f"<style>{style}</style>")
    page = page.replace("<!-- SCRIPT -->", f"<script>{script}</script>")
    packed = gzip.compress(page.encode(), 9, mtime=0)
    if len(packed) > PAGE_BYTES_MAX:
        sys.exit(f"pack.py: {len(packed)} bytes, at most {PAGE_BYTES_MAX}")
    policy = "; ".join([
        "default-src 'none'", f"script-src {source_of(script)}", f"style-src {source_of(style)}", "connect-src 'self'",
        "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    ])  # fmt: skip
    with open(sys.argv[-1], "w", encoding="ascii") as out:
        out.write('#include "server/page/page.h"\n\n')
        out.write(f"const size_t page_size = {len(packed)};\nconst char page_policy[] = \"{policy}\";\n")
        out.write(f"const char page_tag[] = \"\\\"{hashlib.sha256(packed).hexdigest()[:16]}\\\"\";\n")
        out.write("const uint8_t page_bytes[] = {")
        for i in range(0, len(packed), 24):
            out.write("\n    " + ",".join(str(b) for b in packed[i : i + 24]) + ",")
        out.write("\n};\n")


main()
