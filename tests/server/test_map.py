#!/usr/bin/env python3
"""test_map.py LOAM SOURCE_DIR: GET /v1/loam/map, where the chunks of the caller's sequence are.  That its cells are the
engine's state is tests/engine/test_map.c's; here: whose sequence it is and what its changes say."""
import threading

from loam_server import Case, main

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
TEXT = "The gate of the garden is painted green. Nobody knows who painted it. " * 60


class Map(Case):
    options = ("-c", "4096", "-np", "2", "--kv-host", "64M", "--api-key", "one", "--api-key", "two")
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}

    def map(self, headers, since=None):
        reply = self.server.get("/v1/loam/map" + ("?since=%d" % since if since else ""), headers=headers)
        self.assertEqual(reply.status, 200, reply.body[:300])
        if "changes" in reply.json:
            self.assertLessEqual(len(reply.body), 16 << 10)
        return reply.json

    def test_1_is_of_the_callers_own(self):
        self.refused(self.server.get("/v1/loam/map"), 401)
        self.assertEqual(self.map(self.one)["state"], "none")
        self.server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 4}, headers=self.one)
        mine = self.map(self.one)
        self.assertEqual((mine["state"], mine["sequences"]), ("idle", 1))
        self.assertEqual(self.map(self.two), {"object": "loam.map", "sequences": 0, "state": "none"})
        self.server.post("/v1/completions", {"prompt": "A short one.", "max_tokens": 4}, headers=self.two)
        self.assertLess(self.map(self.two)["tokens"], 64)
        self.assertEqual(self.map(self.one)["tokens"], mine["tokens"])

    def test_2_counts_what_its_cells_show(self):
        found = self.map(self.one)
        self.assertFalse(found["selects"])
        cells = [ALPHABET.index(c) for c in found["cells"]]
        self.assertEqual(len(cells), found["layers"] * found["kv_heads"] * found["columns"])
        self.assertEqual(found["column_tokens"], 64)
        self.assertEqual(len(cells), found["chunks"]["all"])
        self.assertEqual(sum(c & 3 == 3 for c in cells), found["chunks"]["ram"])
        self.assertEqual(sum(c & 12 != 0 for c in cells), found["chunks"]["attended"])
        self.assertEqual(sum(c & 16 != 0 for c in cells), found["chunks"]["read"])

    def test_3_tells_what_changed(self):
        done = []
        asking = threading.Thread(target=lambda: done.append(self.server.post(
            "/v1/completions", {"prompt": TEXT[:2000], "max_tokens": 400, "ignore_eos": True}, headers=self.one)))
        asking.start()
        cells, number, shape, states, changes = [], 0, None, set(), 0
        while True:
            running = asking.is_alive()
            found = self.map(self.one, number)
            states.add(found["state"])
            if found["state"] == "none":
                continue
            if "cells" in found:
                cells, shape = list(found["cells"]), found["columns"]
            else:
                changes += 1
                self.assertEqual((found["columns"], found["late"]), (shape, 0))  # as a small model has few cells
                for at, run in zip(found["changes"][::2], found["changes"][1::2]):
                    cells[at:at + len(run)] = run
            number = found["number"]
            if not running:
                break
        self.assertEqual(done[0].status, 200)
        self.assertGreater(changes, 0)
        self.assertIn("answering", states)
        found = self.map(self.one)
        self.assertEqual(found["state"], "idle")
        self.assertEqual("".join(cells), found["cells"])
        self.assertGreater(found["token"]["attended_rows"], 0)
        self.assertEqual(found["position"] + 1, found["tokens"])


class Selecting(Case):
    """What a preset leaves out is counted alike by the map, for one token, and by the metrics, for all."""
    options = ("-c", "2048", "-np", "1", "--set", "select=window", "--set", "dense=0", "--keep", "64", "--kv-host", "64M")

    def test_kept_ratio(self):
        for count in (1, 2):  # the first token is the prompt's; what tokens do is noted while somebody reads maps
            self.server.post("/v1/completions", {"prompt": TEXT[:2000], "max_tokens": count, "ignore_eos": True})
            found = self.server.get("/v1/loam/map").json
        metrics, token = self.server.metrics(), found["token"]
        self.assertTrue(found["selects"])
        self.assertLess(token["attended_rows"], token["visible_rows"])
        self.assertEqual((metrics["loam_attended_rows_total"], metrics["loam_visible_rows_total"]),
                         (token["attended_rows"], token["visible_rows"]))
        self.assertAlmostEqual(metrics["loam_kept_ratio"], token["attended_rows"] / token["visible_rows"])


if __name__ == "__main__":
    main()
