"""More clients and documents than RAM has room for: each answer is the one that its question gets alone.  The same with
64 clients over 8K documents: bench/many_documents.py."""
import json
import os
import subprocess
import tempfile
import threading
import unittest

from loam_server import LOAM, NANO, ROOT, Server, main

PATH = "/v1/completions"
CLIENTS, LENGTH, ANSWER, QUESTION, PART = 8, 1000, 12, 20, 8


class Pressure(unittest.TestCase):
    def prompts(self, server):
        """Documents from different places of a text, and a question behind each."""
        with open(os.path.join(ROOT, "tests", "data", "a-scandal-in-bohemia.txt"), encoding="utf-8") as file:
            ids = server.post("/tokenize", {"content": file.read(), "add_special": False}).json["tokens"]
        step = (len(ids) - LENGTH - QUESTION) // CLIENTS
        return [ids[i * step:i * step + LENGTH] + ids[-QUESTION - i:][:QUESTION] for i in range(CLIENTS)]

    def ask(self, server, prompt):
        reply = server.post(PATH, {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}, timeout=300)
        self.assertEqual(reply.status, 200, reply.body[:300])
        return reply.json["choices"][0]["text"], reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    def ask_all(self, server, prompts):
        found = [None] * len(prompts)

        def ask(i):
            found[i] = self.ask(server, prompts[i])
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertNotIn(None, found)  # none failed
        return found

    def serve(self, *options):
        server = Server(*options)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())  # where an assertion fails
        return server

    def test_answers_are_those_alone(self):
        told = json.loads(subprocess.run([LOAM, "inspect", "--json", "-m", NANO], capture_output=True, check=True).stdout)
        budget = told["model"]["kv_bytes_per_token"]["f16"] * CLIENTS * (LENGTH + QUESTION + ANSWER) // PART
        context = ("-c", str(LENGTH + QUESTION + ANSWER + 1))
        server = self.serve("-np", "1", *context)  # all of one client's KV in RAM, and nothing else
        prompts = self.prompts(server)
        alone = [self.ask(server, prompt)[0] for prompt in prompts]
        self.assertEqual(server.stop(), 0)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = self.serve("-np", "2", "--kv-host", str(budget), "--kv-disk", folder.name, *context)
        for turn in range(2):
            found = self.ask_all(server, prompts)
            self.assertEqual([text for text, _ in found], alone)
            for _, cached in found:
                self.assertGreaterEqual(cached, LENGTH if turn > 0 else 0)
                self.assertLessEqual(cached, 64 if turn == 0 else len(prompts[0]))
        metrics = server.metrics()
        self.assertLessEqual(metrics["loam_kv_host_bytes"], budget)
        self.assertGreater(metrics["loam_kv_read_pages_total"], 0)  # RAM did not hold them
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
