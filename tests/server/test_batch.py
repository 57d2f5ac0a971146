"""loam batch: the same answers as alone, once each, also after kill -9; files that are not its own stay as they are."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from loam_server import LOAM, NANO, main, run_loam

COUNT = 24
LONG = 20 * COUNT  # requests that nobody waits for: however slow this test is, they are not over


def request(index, **fields):
    if index % 3 == 0:
        url, body = "/v1/completions", {"prompt": f"The king number {index} went"}
    else:
        url, body = "/v1/completions", {"prompt": [f"A house of {index} rooms", f"{index} men"]}
    return {"custom_id": f"r{index}", "method": "POST", "url": url,
            "body": {"max_tokens": 24, "temperature": 0, **body, **fields}}


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Batch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.input = os.path.join(self.folder.name, "requests.jsonl")
        self.output = os.path.join(self.folder.name, "answers.jsonl")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, requests):
        with open(self.input, "w") as file:
            for line in requests:
                file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")

    def command(self, *options):
        return [LOAM, "batch", "-m", NANO, "-i", self.input, "-o", self.output, "-c", "256", "-t", "1", *options]

    def run_batch(self, *options, code=0):
        done = subprocess.run(self.command(*options), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def answers(self):
        with open(self.output) as file:
            lines = [json.loads(line) for line in file]
        found = {line["custom_id"]: line for line in lines}
        self.assertEqual(len(found), len(lines), "answered twice")
        return found

    def texts(self):
        return {name: [choice["text"] for choice in line["response"]["body"]["choices"]]
                for name, line in self.answers().items()}

    def test_answers_are_those_alone(self):
        self.write([request(i) for i in range(COUNT)])
        self.run_batch()
        together = self.texts()
        self.assertEqual(set(together), {f"r{i}" for i in range(COUNT)})
        self.assertEqual(together["r0"], [run_loam("run", "--raw", "-p", "The king number 0 went", "-n", "24",
                                                   "--temp", "0")])
        for options in (("-np", "1"), ("-np", "5", "--weights-host", "5M")):
            os.remove(self.output)
            self.run_batch(*options)
            self.assertEqual(self.texts(), together)
        line = self.answers()["r3"]
        self.assertEqual((line["error"], line["response"]["status_code"]), (None, 200))
        self.assertTrue(line["id"].startswith("batch_req_") and line["response"]["request_id"])

    def test_a_shared_beginning_is_read_once(self):
        story = " ".join(f"Room {i} has a {('red', 'green', 'blue')[i % 3]} lamp." for i in range(14))
        self.write([{"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                     "body": {"prompt": f"{story} The lamp of room {i} is", "max_tokens": 8, "temperature": 0,
                              "n": 2 if i == 3 else 1}} for i in range(8)])

        def computed():
            used = [line["response"]["body"]["usage"] for line in self.answers().values()]
            return sum(u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for u in used)

        self.run_batch("-np", "1")
        expected, least = self.texts(), computed()
        for options in (("-np", "8"), ("-np", "3", "--kv-disk", os.path.join(self.folder.name, "kv"))):
            os.remove(self.output)
            self.run_batch(*options)
            self.assertEqual(self.texts(), expected)
            self.assertLessEqual(computed(), least * 1.1)

    def test_killed_anywhere(self):
        self.write([request(i) for i in range(COUNT)])
        self.run_batch("-np", "3")
        expected = self.texts()
        os.remove(self.output)
        kills = 0
        for lines in range(1, 40, 3):  # killed once so many answers are there
            process = subprocess.Popen(self.command("-np", "3"), stderr=subprocess.DEVNULL)
            while process.poll() is None:
                if os.path.exists(self.output) and read(self.output).count(b"\n") >= lines:
                    process.kill()
                    break
                time.sleep(0.002)
            kills += process.wait() == -signal.SIGKILL
            if read(self.output).endswith(b"\n"):
                with open(self.output, "ab") as file:  # as a kill within a write leaves it
                    file.write(b'{"id":"batch_req_00'[:lines])
        print(f"{kills} times killed in between")
        self.run_batch("-np", "3")
        self.assertEqual(self.texts(), expected)
        before = read(self.output)
        self.assertIn(f"{COUNT} of {COUNT} answered", self.run_batch())
        self.assertEqual(read(self.output), before)

    def test_interrupted(self):
        self.write([request(i, max_tokens=200, ignore_eos=True) for i in range(LONG)])
        process = subprocess.Popen(self.command("-np", "2"), stderr=subprocess.PIPE, text=True)
        while not os.path.exists(self.output) or os.path.getsize(self.output) == 0:
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        self.assertNotEqual(process.returncode, 0)
        count = len(self.answers())
        self.assertIn(f"{LONG - count} of {LONG} requests have no answer", said)

    def test_refused_requests_have_answers(self):
        self.write([request(0), request(1, max_tokens="many"), {**request(2), "url": "/v1/nothing"}])
        said = self.run_batch()
        found = {name: line["response"] for name, line in self.answers().items()}
        self.assertEqual({name: response["status_code"] for name, response in found.items()},
                         {"r0": 200, "r1": 400, "r2": 404})
        self.assertIn("max_tokens", found["r1"]["body"]["error"]["message"])
        self.assertIn("2 were refused", said)

    def test_bad_requests_stop_before_any_work(self):
        good = json.dumps(request(0))
        for line, words in (("{", ":2: column"), ("[]", ":2: found a list, expected an object"),
                            (json.dumps({**request(1), "custom_id": 5}), ":2: field 'custom_id': found a number"),
                            (json.dumps({**request(1), "method": "GET"}), ":2: field 'method': found \"GET\""),
                            (json.dumps({**request(1), "body": None}), ":2: field 'body': found null"),
                            (json.dumps(request(1, stream=True)), ":2: field 'body.stream'"),
                            (good, ":2: field 'custom_id': found \"r0\", which line 1 has")):
            self.write([good, line])
            self.assertIn(words, self.run_batch(code=2))
            self.assertFalse(os.path.exists(self.output))
        self.write([""])
        self.assertIn("found no request", self.run_batch(code=2))

    def test_other_files_stay(self):
        self.write([request(0)])
        for text in ("a diary\n", "a diary", json.dumps({"custom_id": "x", "response": {}}) + "\n",
                     json.dumps({"custom_id": "r0"}) + "\n", '{"id":"batch_req_1"}\n'):
            with open(self.output, "w") as file:
                file.write(text)
            self.run_batch(code=2)
            self.assertEqual(read(self.output).decode(), text)
        self.output = self.input
        before = read(self.input)
        self.assertIn("the same file", self.run_batch(code=2))
        self.assertEqual(read(self.input), before)

    def test_one_writer(self):
        self.write([request(i, max_tokens=200) for i in range(LONG)])
        first = subprocess.Popen(self.command("-np", "2"), stderr=subprocess.DEVNULL)
        while not os.path.exists(self.output) or os.path.getsize(self.output) == 0:
            self.assertIsNone(first.poll())
            time.sleep(0.01)
        self.assertIn("another loam batch", self.run_batch(code=2))
        first.kill()
        first.wait()


if __name__ == "__main__":
    main()
