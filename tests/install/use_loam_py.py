"""What loam.py can beyond examples/complete.py: use_loam_py.py MODEL FOLDER."""
import os
import sys

import loam

MODEL, FOLDER = sys.argv[1:]
TEXT = "The report of the first day says that the ship left the harbour at dawn. " * 20

with loam.Model(MODEL, threads=1) as model:
    assert model.context_length > 1000 and model.name
    context = model.context_length
    ids = model.tokenize("a day")
    assert ids and ids[1:] == model.tokenize("a day", begin=False) or ids == model.tokenize("a day", begin=False)
    for _ in range(2):
        with model.session(context=2048, disk=os.path.join(FOLDER, "kv_python"), document_name="report") as session:
            pieces = []
            answer = session.ask("When?", [TEXT], raw=True, max_tokens=8, hear=pieces.append)
            assert answer and b"".join(pieces).decode() == answer
    with model.session(context=512) as session:
        first = session.generate(ids, max_tokens=8, temperature=1, seed=3)
        assert first == session.generate(ids, max_tokens=8, temperature=1, seed=3)
        pieces = []
        assert session.generate(ids, max_tokens=8, hear=lambda piece: pieces.append(piece) or True) == pieces[0]
        assert len(pieces) == 1
        assert session.generate(ids, max_tokens=40, json_schema='{"enum": ["yes"]}') == b'"yes"'
        for wrong, status in ((lambda: session.generate(ids, json_schema="{"), 2), (lambda: session.generate([]), 2),
                              (lambda: loam.Model(os.path.join(FOLDER, "none")), 6)):
            try:
                wrong()
            except loam.Error as error:
                assert error.status == status and str(error), (error.status, str(error))
            else:
                raise AssertionError("nothing was refused")
with loam.Model(MODEL, yarn_context=2 * context) as stretched:
    assert stretched.context_length == 2 * context
try:
    model.tokenize("x")
except ValueError:
    pass
else:
    raise AssertionError("a closed model")
