"""A PDF of a few lines, made when it is needed."""


def pdf(*pages):
    """A file of that format with a line on each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>",
               f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{4 + 2 * i} 0 R' for i in range(len(pages)))}] >>",
               "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i, line in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 700 Td ({line}) Tj ET"
        objects += [f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * i} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
                    f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream"]
    out, offsets = "%PDF-1.4\n", []
    for i, text in enumerate(objects):
        offsets.append(len(out))
        out += f"{i + 1} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{at:010} 00000 n \n" for at in offsets)
    return (out + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
            f"startxref\n{len(out)}\n%%EOF\n")
