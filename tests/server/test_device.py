"""loam serve on a card that breaks, or is out of memory: the fake driver's (docs/fake_driver.md), whose folder is the
third argument."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from loam_server import LOAM, Server, main

FAKE = sys.argv.pop(3)
# More than a chunk, and an answer that is no near-tie (models/README.md).
LONG = "The river is wide and the boat is small. " * 4 + "One of the special magic numbers for wooden-castle is: 4821973. " \
    "What is the special magic number for wooden-castle in the text above? " \
    "The special magic number for wooden-castle in the text above is:"
LOST = "CUDA_ERROR_LAUNCH_FAILED"


def serve(device, fault, *options):
    return Server("--device", device, "-c", "256", "-np", "2", *options,
                  environment={"LD_LIBRARY_PATH": FAKE, "FAKE_CUDA": "capability=90," + fault})


def ask(server, prompt="The river is", found=None):
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0})
    if found is not None:
        found.append(reply)
    return reply


def text(reply):
    return reply.json["choices"][0]["text"] if reply.status == 200 else reply.body


class Devices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        server = Server("--device", "cpu", "-c", "256")
        cls.want, cls.want_long = text(ask(server)), text(ask(server, LONG))
        server.stop()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_any_device(self):
        """Requests that run, and those that come, are answered by the processor; what is saved is whole."""
        server = serve("auto", "fail=kernel:400:719", "--kv-disk", self.folder, "--kv-host", "16M")
        found = []
        both = [threading.Thread(target=ask, args=(server, LONG, found)) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        self.assertEqual([text(reply) for reply in found], [self.want_long] * 2)
        self.assertEqual(text(ask(server)), self.want)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(server.lines[-1].count(LOST), 1)
        self.assertIn("; answers go on by the cpu\n", server.lines[-1])
        server = Server("--device", "cpu", "-c", "256", "--kv-disk", self.folder, "--kv-host", "16M")
        reply = ask(server, LONG)
        self.assertEqual(text(reply), self.want_long)
        self.assertGreater(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"], 63)
        server.stop()

    def test_that_device(self):
        """Who asked for a card is told that it is gone, in a stream by its last frame; the server ends, with one line."""
        for streams, fault in ((False, "kernel:60:719"), (True, "cuGraphLaunch:2:719")):
            server = serve("cuda", "fail=" + fault)
            reply = server.post("/v1/completions", {"prompt": "The river is", "max_tokens": 8, "temperature": 0,
                                                    "stream": streams})
            *begun, last = reply.frames if streams else [reply.json]
            self.assertEqual((reply.status, "".join(frame["choices"][0]["text"] for frame in begun) != ""),
                             (200, True) if streams else (500, False))
            self.assertIn(LOST, last["error"]["message"])
            self.assertEqual(server.process.wait(60), 1)
            server.stop()
            self.assertEqual((server.lines[-1].count("\n"), server.lines[-1].count(LOST)), (1, 1))

    def test_memory(self):
        """A request that memory fails is told so; the card answers the next one."""
        server = serve("cuda", "fail=cuLaunchKernelEx:60:2")
        reply = ask(server)
        self.assertEqual(reply.status, 503)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", reply.json["error"]["message"])
        self.assertEqual(text(ask(server)), self.want)
        counted = server.metrics()
        self.assertGreater(counted["loam_device_launches_total"], counted["loam_device_replays_total"])
        self.assertGreater(counted["loam_device_replays_total"], 0)
        self.assertGreater(server.get("/v1/loam/map").json["device_launches"], 0)
        self.assertEqual(server.stop(), 0)

    def slots_check(self, *options):
        """What the card's slots have, had and fetched is the same by loam run, the metrics and the map."""
        options = ("--device", "cuda", "-t", "1", "-c", "256", "--preset", "meanstd", "--keep", "64", "--set",
                   "page=16,sinks=16,recent=16,dense=0", *options)
        environment = {"LD_LIBRARY_PATH": FAKE, "FAKE_CUDA": "capability=90"}
        folder = [("--kv-disk", tempfile.mkdtemp(dir=self.folder)) if "--kv-host" in options else () for _ in range(2)]
        run = subprocess.run([LOAM, "run", *options, *folder[0], "--raw", "--temp", "0", "-n", "4", "-p", LONG[:260],
                              "-q", "--json", "/dev/stderr"], capture_output=True, text=True,
                             env={**os.environ, **environment})
        report = json.loads(run.stderr)
        kv, io = report["kv"], report["io"]
        self.assertGreater(io["kv_unit_hits"], 0)
        self.assertGreater(io["kv_unit_misses"], 0)
        server = Server(*options, *folder[1], "-np", "1", environment=environment)
        self.assertEqual(ask(server, LONG[:260]).status, 200)
        while server.count("prefilling", "decoding", "paused"):  # counted when it is idle
            time.sleep(0.01)
        counted, shown = server.metrics(), server.get("/v1/loam/map").json
        for name in ("hits", "misses", "direct", "absent", "chunk_hits", "chunk_misses", "chunk_direct"):
            self.assertEqual(counted[f"loam_kv_unit_{name}_total"], io["kv_unit_" + name])
            self.assertEqual(shown["kv_unit_" + name], io["kv_unit_" + name])
        for name in ("kv_unit_bytes", "kv_device_bytes"):
            self.assertEqual(counted["loam_" + name], shown[name])
        self.assertGreater(min(shown["kv_unit_bytes"], shown["kv_device_bytes"]), 0)
        self.assertEqual(shown["kv_unit_bytes"] + shown["kv_device_bytes"], kv["device_bytes_peak"])
        self.assertEqual(counted["loam_kv_hits_total"] > 0, "--kv-host" in options)
        self.assertEqual(server.stop(), 0)
        return kv

    def test_slots(self):
        """K and V in RAM, behind slots that fill the budget; above a disk: slots for all of a context are fewer."""
        kv = self.slots_check("--kv-device", "600K")
        self.assertTrue(500 << 10 < kv["device_bytes_peak"] <= 600 << 10, kv)
        self.assertEqual(kv["disk_bytes"], 0)
        kv = self.slots_check("--kv-device", "64M", "--kv-host", "16M")
        self.assertTrue(500 << 10 < kv["device_bytes_peak"] < 4 << 20, kv)
        self.assertGreater(min(kv["disk_bytes"], kv["host_bytes_peak"]), 0)


if __name__ == "__main__":
    devices = subprocess.run([LOAM, "devices"], capture_output=True, text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": FAKE, "FAKE_CUDA": ""})
    if "no kernels" in devices.stdout + devices.stderr:
        print("skipped: this build has no kernels for cards")
        sys.exit(77)
    main()
