"""Real clients against the real server: curl, openai, anthropic, langchain-openai, litellm, lm-eval; those that are not
installed are skipped by name.  On the real model where it is there, else on the bundled one."""
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from loam_server import LOAM, NANO, REAL, ROOT, Case, Reply, Server, main

MODEL = REAL or NANO
QUESTION = [{"role": "user", "content": "Say a word."}]
TEXT = ("Once upon a time there was a king who had three daughters. The eldest could sing, the second could ride, and "
        "the youngest knew where the fox lives. One day the king lost his ring in the garden behind the castle. ")

SAMPLES, CHOICES = 200, 2
TASKS = {
    "loam_choice": {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}",
                    "doc_to_target": "label", "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    "loam_word": {"output_type": "loglikelihood", "doc_to_text": "{{text}}", "doc_to_target": " {{word}}", "target_delimiter": "",
                  "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
    "loam_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                     "metric_list": [{"metric": "word_perplexity"}]},
}


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, "not installed: " + ", ".join(missing))


class Clients(Case):
    model = MODEL
    template = () if MODEL == REAL else ("--chat-template", "llama2")
    options = ("-np", "4", "-c", "2048", "--api-key", "secret", *template)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = "http://127.0.0.1:%d" % cls.server.port
        cls.headers = {"Authorization": "Bearer secret"}
        reply = cls.server.get("/v1/models", headers=cls.headers)
        cls.id = reply.json["data"][0]["id"]
        cls.answer = cls.server.post("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "max_tokens": 8},
                                     headers=cls.headers).json["choices"][0]["message"]["content"]

    @unittest.skipIf(shutil.which("curl") is None, "not installed: curl")
    def test_curl(self):
        """The commands of docs/server.md, as they stand there."""
        commands, begun = [], ""
        with open(os.path.join(ROOT, "docs", "server.md"), encoding="utf-8") as file:
            for line in file:
                if not begun and not line.startswith("    $ curl "):
                    continue
                begun = begun.replace("\\\n", "") + line.removeprefix("    $ ")
                if begun.count("'") % 2 == 0 and not begun.endswith("\\\n"):
                    commands.append(shlex.split(begun))
                    begun = ""
        self.assertGreaterEqual(len(commands), 5)
        with tempfile.TemporaryDirectory() as folder:
            servers = {}
            try:
                for name in ("localhost:8080", "localhost:8081"):
                    servers[name] = Server("-c", "2048", "--kv-disk", os.path.join(folder, name[-4:]), *self.template, model=self.model)
                for command in commands:
                    for name, server in servers.items():
                        command = [word.replace(name, "127.0.0.1:%d" % server.port) for word in command]
                    done = subprocess.run([*command, "-sS", "--fail-with-body"], capture_output=True, text=True, check=False, cwd=folder)
                    self.assertEqual(done.returncode, 0, (command, done.stdout, done.stderr))
                    if "-OJ" not in command:
                        self.assertIn(json.loads(done.stdout)["object"], ("loam.document", "loam.text", "chat.completion", "loam.explanation", "loam.conversation"))
            finally:
                for server in servers.values():
                    self.assertEqual(server.stop(), 0)
            done = subprocess.run(["curl", "-sS", "-N", self.base + "/v1/chat/completions", "-H", "Authorization: Bearer secret",
                                   "--json", json.dumps({"messages": QUESTION, "temperature": 0, "max_tokens": 8, "stream": True})],
                                  capture_output=True, check=True)
        frames = Reply(200, {}, done.stdout).frames
        self.assertEqual("".join(f["choices"][0]["delta"].get("content", "") for f in frames[:-1]), self.answer)
        self.assertEqual(frames[-1], "[DONE]")

    @needs("openai")
    def test_openai(self):
        import openai
        client = openai.OpenAI(base_url=self.base + "/v1", api_key="secret", max_retries=0)
        self.assertEqual([m.id for m in client.models.list()], [self.id])
        asked = {"model": self.id, "messages": QUESTION, "temperature": 0, "max_tokens": 8}
        self.assertEqual(client.chat.completions.create(**asked).choices[0].message.content, self.answer)
        chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), self.answer)
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        with client.chat.completions.stream(**asked) as stream:  # the accumulating helper
            stream.until_done()
            with self.assertRaises(openai.LengthFinishReasonError) as raised:
                stream.get_final_completion()
            self.assertEqual(raised.exception.completion.choices[0].message.content, self.answer)
        text = client.completions.create(model=self.id, prompt="The king", max_tokens=3, temperature=0, logprobs=2)
        self.assertEqual(len(text.choices[0].logprobs.tokens), 3)
        response = client.responses.create(model=self.id, input="Say a word.", temperature=0, max_output_tokens=8)
        self.assertEqual(response.output_text, self.answer)
        with client.responses.stream(model=self.id, input="Say a word.", temperature=0, max_output_tokens=8) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), self.answer)
        with self.assertRaises(openai.BadRequestError) as raised:
            client.chat.completions.create(model=self.id, messages=[{"role": "user", "content": "word " * 4000}])
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.base + "/v1", api_key="wrong", max_retries=0).models.list()
        with self.assertRaises(openai.NotFoundError):
            client.files.list()
        client.close()

    @needs("openai")
    def test_openai_calls_tools_and_parses(self):
        import openai
        if MODEL != REAL:
            self.skipTest("the bundled model calls no tools")
        client = openai.OpenAI(base_url=self.base + "/v1", api_key="secret", max_retries=0)
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
        talk = []
        for city in ("Rome", "Oslo", "Lima"):
            talk += [{"role": "user", "content": "What is the weather in %s?" % city},
                     {"role": "assistant", "content": None, "tool_calls": [
                         {"id": "c1", "type": "function",
                          "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}]}]
        talk.append({"role": "user", "content": "What is the weather in Paris?"})
        with client.chat.completions.stream(model=self.id, messages=talk, tools=tools, temperature=0, max_tokens=60) as stream:
            stream.until_done()
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
        client.close()

    @needs("anthropic")
    def test_anthropic(self):
        import anthropic
        client = anthropic.Anthropic(base_url=self.base, api_key="secret", max_retries=0)
        asked = {"model": self.id, "messages": QUESTION, "max_tokens": 8, "extra_body": {"temperature": 0}}
        message = client.messages.create(**asked)
        self.assertEqual((message.content[0].text, message.stop_reason), (self.answer, "max_tokens"))
        with client.messages.stream(**asked) as stream:
            self.assertEqual("".join(stream.text_stream), self.answer)
            final = stream.get_final_message()
        self.assertEqual((final.content[0].text, final.usage.output_tokens), (self.answer, 8))
        count = client.messages.count_tokens(model=self.id, messages=QUESTION)
        usage = message.usage
        self.assertEqual(count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)
        self.assertEqual([m.id for m in client.models.list()], [self.id])
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(model=self.id, max_tokens=1, messages=[{"role": "user", "content": "word " * 4000}])
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.base, api_key="wrong", max_retries=0).messages.create(**asked)
        client.close()

    @needs("langchain_openai")
    def test_langchain(self):
        from langchain_openai import ChatOpenAI, OpenAI
        chat = ChatOpenAI(base_url=self.base + "/v1", api_key="secret", model=self.id, temperature=0, max_tokens=8, max_retries=0)
        reply = chat.invoke("Say a word.")
        self.assertEqual((reply.content, reply.usage_metadata["output_tokens"]), (self.answer, 8))
        self.assertEqual("".join(part.content for part in chat.stream("Say a word.")), self.answer)
        self.assertEqual(len(chat.batch(["Say a word."] * 3)), 3)
        text = OpenAI(base_url=self.base + "/v1", api_key="secret", model=self.id, temperature=0, max_tokens=4)
        self.assertIsInstance(text.invoke("The king"), str)

    @needs("litellm")
    def test_litellm(self):
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is asked of the network
        import litellm
        asked = {"model": "openai/" + self.id, "api_base": self.base + "/v1", "api_key": "secret", "temperature": 0,
                 "max_tokens": 8, "num_retries": 0}
        reply = litellm.completion(messages=QUESTION, **asked)
        self.assertEqual(reply.choices[0].message.content, self.answer)
        parts = litellm.completion(messages=QUESTION, stream=True, **asked)
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts), self.answer)
        with self.assertRaises(litellm.ContextWindowExceededError):
            litellm.completion(messages=[{"role": "user", "content": "word " * 4000}], **asked)
        claude = litellm.completion(messages=QUESTION, **{**asked, "model": "anthropic/" + self.id, "api_base": self.base})
        self.assertEqual(claude.choices[0].message.content, self.answer)

    def test_log_probabilities_are_the_models_own(self):
        """What lm-eval sums, and what `loam-lab perplexity` computes without a server, of the same tokens.  It cuts its windows
        from the text with BOS in front where the vocabulary asks for one, and then begins each of them with BOS."""
        ids = self.server.post("/tokenize", {"content": TEXT * 14, "add_special_tokens": True}, headers=self.headers).json["tokens"]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(TEXT * 14)
            file.flush()
            told = subprocess.run([LOAM + "-lab", "perplexity", "-m", self.model, "-f", file.name, "-c", "256", "-t", "1", "--preset", "full"],
                                  capture_output=True, text=True, check=True).stdout
        found = float(re.search(r"PPL over .* = ([0-9.]+)", told).group(1))
        begin = self.server.get("/tokenizer_info", headers=self.headers).json
        total, count = 0.0, 0
        for first in range(0, len(ids) - 255, 256):
            window = list(ids[first:first + 256])
            if begin["add_bos_token"]:
                window[0] = begin["bos_token_id"]
            reply = self.server.post("/v1/completions", {"prompt": [window], "max_tokens": 1, "logprobs": 1, "echo": True,
                                                         "temperature": 0}, headers=self.headers).json
            scored = reply["choices"][0]["logprobs"]["token_logprobs"][129:256]
            total, count = total - sum(scored), count + len(scored)
        self.assertAlmostEqual(math.exp(total / count), found, delta=5e-5 + 2e-6 * found)  # rounded to 4 digits, sums of floats

    @needs("lm_eval", "tenacity")
    def test_lm_eval(self):
        os.environ.update({"OPENAI_API_KEY": "secret", "HF_HUB_OFFLINE": "1"})
        from lm_eval.api.instance import Instance
        from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
        model = LocalCompletionsAPI(base_url=self.base + "/v1/completions", model=self.id, tokenizer_backend="remote", auth_token="secret",
                                    num_concurrent=1, max_retries=1, max_length=2048, seed=1)
        words = (TEXT * 4).split()
        pairs = [(" ".join(words[:i]), " " + " ".join(words[i:i + 1 + i % 4])) for i in range(1, 60, 2)]
        instances = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
        scores = model.loglikelihood(instances)
        for (context, rest), (sum_found, greedy) in zip(pairs, scores):
            sum_expected, greedy_expected = self.score(context, rest)
            self.assertAlmostEqual(sum_found, sum_expected, places=4)
            self.assertEqual(bool(greedy), greedy_expected)
        text = model.generate_until([Instance("generate_until", {}, (TEXT, {"until": ["."], "max_gen_toks": 12,
                                                                            "temperature": 0}), 0)])
        self.assertNotIn(".", text[0])
        chat = LocalChatCompletion(base_url=self.base + "/v1/chat/completions", model=self.id, max_retries=1)
        said = chat.generate_until([Instance("generate_until", {}, (chat.apply_chat_template(QUESTION), {
            "until": [], "max_gen_toks": 8, "temperature": 0}), 0)])
        self.assertEqual(said, [self.answer])

    @needs("lm_eval", "tenacity")
    def test_lm_eval_tasks(self):
        """3 tasks of 200 samples, one of each kind of score: what lm-eval gets is what the model's own logits say."""
        scorer = os.environ.get("LOAM_SCORE_TOKENS")
        if not scorer:
            self.skipTest("LOAM_SCORE_TOKENS, the program that has the logits without a server, is not set")
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update({"OPENAI_API_KEY": "secret", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                               "HF_HOME": os.path.join(folder, "cache")})
            from lm_eval import simple_evaluate
            from lm_eval.models.openai_completions import LocalCompletionsAPI
            from lm_eval.tasks import TaskManager
            self.write_tasks(folder)
            model = LocalCompletionsAPI(base_url=self.base + "/v1/completions", model=self.id, tokenizer_backend="remote",
                                        auth_token="secret", num_concurrent=4, batch_size=4, max_retries=1, max_length=1024, timeout=3600, seed=1)
            found = simple_evaluate(model, tasks=list(TASKS), task_manager=TaskManager(include_path=folder, include_defaults=False),
                                    log_samples=True, bootstrap_iters=0)
        scored = []  # (ids, how many of them are scored, what lm-eval got)
        for name in TASKS:
            self.assertEqual(len(found["samples"][name]), SAMPLES)
            for sample in found["samples"][name]:
                for arguments, replies in zip(sample["arguments"], sample["resps"]):
                    if name == "loam_rolling":
                        ids = model.tok_encode(arguments[0])
                        scored.append(([model.prefix_token_id] + ids, len(ids), (replies[0], None)))
                    else:
                        context, rest = model._encode_pair(*arguments)
                        scored.append((context + rest, len(rest), replies[0]))
        self.assertEqual(len(scored), SAMPLES * (CHOICES + 2))
        lines = "".join(" ".join(map(str, ids)) + "\n" for ids, _, _ in scored)
        told = subprocess.run([scorer, self.model], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual(len(told), len(scored))
        for line, (ids, count, (total, greedy)) in zip(told, scored):
            values = line.split()
            own, best = [float(v) for v in values[0::2]][-count:], [v == "1" for v in values[1::2]][-count:]
            self.assertEqual(len(values), 2 * (len(ids) - 1))
            self.assertAlmostEqual(total, math.fsum(own), delta=1e-6 * abs(total) + 1e-6)
            if greedy is not None:
                self.assertEqual(bool(greedy), all(best))
        # And the tasks' own figures follow from them.
        sums = [math.fsum(float(v) for v in line.split()[0::2][-count:]) for line, (_, count, _) in zip(told, scored)]
        choices = [sums[i:i + CHOICES] for i in range(0, SAMPLES * CHOICES, CHOICES)]
        right = sum(c.index(max(c)) == s["doc"]["label"] for c, s in zip(choices, found["samples"]["loam_choice"]))
        self.assertAlmostEqual(found["results"]["loam_choice"]["acc,none"], right / SAMPLES)
        self.assertGreater(right, SAMPLES / CHOICES)  # better than chance
        words = sum(len(re.split(r"\s+", s["doc"]["text"])) for s in found["samples"]["loam_rolling"])
        self.assertAlmostEqual(found["results"]["loam_rolling"]["word_perplexity,none"] /
                               math.exp(-math.fsum(sums[-SAMPLES:]) / words), 1, delta=1e-5)

    def write_tasks(self, folder):
        """Of a text in the repository: which of the words that follow somewhere follow here; the last word; a whole part."""
        with open(os.path.join(ROOT, "tests", "data", "a-scandal-in-bohemia.txt"), encoding="utf-8") as file:
            words = file.read().split()
        step = (len(words) - 60) // SAMPLES
        docs = {name: [] for name in TASKS}
        for i in range(SAMPLES):
            at = [(i + j * 37) % SAMPLES * step for j in range(CHOICES)]
            context = " ".join(words[at[0]:at[0] + 20])
            choices = [" " + " ".join(words[a + 20:a + 24]) for a in at]
            docs["loam_choice"].append({"context": context, "choices": choices[i % CHOICES:] + choices[:i % CHOICES],
                                        "label": -i % CHOICES})
            docs["loam_word"].append({"text": context, "word": words[at[0] + 20]})
            docs["loam_rolling"].append({"text": " ".join(words[at[0]:at[0] + 30])})
        for name, task in TASKS.items():
            with open(os.path.join(folder, name + ".jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps(doc) + "\n" for doc in docs[name])
            with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:  # JSON is YAML
                json.dump({"task": name, "dataset_path": "json", "test_split": "test", "metadata": {"version": 1},
                           "dataset_kwargs": {"data_files": {"test": os.path.join(folder, name + ".jsonl")}}, **task}, file)

    def score(self, context, rest):
        """Of the tokens of rest behind context, from the server alone."""
        ids = [self.server.post("/tokenize", {"content": text, "add_special_tokens": False}, headers=self.headers).json["tokens"]
               for text in (context, context + rest)]
        reply = self.server.post("/v1/completions", {"prompt": [ids[1]], "max_tokens": 1, "logprobs": 1, "echo": True,
                                                     "temperature": 0, "seed": 1234}, headers=self.headers).json
        found = reply["choices"][0]["logprobs"]
        begin = len(ids[0])
        own, top = found["token_logprobs"][begin:-1], found["top_logprobs"][begin:-1]
        return sum(own), all(a == max(b.values()) for a, b in zip(own, top))


if __name__ == "__main__":
    main()
