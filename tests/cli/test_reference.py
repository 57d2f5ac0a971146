"""What is made from the option table: test_reference.py LOAM SOURCE_DIR.  The page in docs/, the manual page, completions."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LOAM, SOURCE = os.path.abspath(sys.argv[1]), sys.argv[2]
MARK = "<!-- From here on made by `%s help --as markdown` (./do docs). -->\n"


def told(program, *words):
    return subprocess.run([program, "help", *words], stdout=subprocess.PIPE, text=True, check=True).stdout


def made(form, program=LOAM):
    return told(program, "--as", form)


def commands(program=LOAM):
    return re.findall(r"^  ([a-z]+) +\S", told(program).split("Examples:")[0], re.M)


def options(program=LOAM):
    for command in commands(program):
        yield from re.findall(r"^ +(?:-\S+, )?--([a-z0-9-]+)", told(program, command), re.M)


class Reference(unittest.TestCase):
    def test_the_pages_are_todays(self):
        for name, program in ("command_line.md", LOAM), ("lab.md", LOAM + "-lab"):
            with open(os.path.join(SOURCE, "docs", name), encoding="utf-8") as page:
                text = page.read()
            mark = MARK % os.path.basename(program)
            self.assertEqual(text.count(mark), 1)
            self.assertTrue(text.split(mark)[1].strip() == made("markdown", program).strip(), "docs/%s: ./do docs" % name)

    def test_every_option_is_in_every_form(self):
        names = set(options())
        for form in ("man", "markdown", "bash", "zsh", "fish"):
            text = made(form).replace("\\-", "-")
            for name in names:
                self.assertRegex(text, r"(--|-l )%s\b" % name, form)

    def test_every_option_of_the_lab_is_in_a_page(self):
        text = made("markdown") + made("markdown", LOAM + "-lab")
        for name in set(options(LOAM + "-lab")):
            self.assertRegex(text, r"--%s\b" % name)

    def test_the_manual_page_is_clean(self):
        if shutil.which("groff") is None:
            self.skipTest("there is no groff")
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=made("man"), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        self.assertEqual(done.stderr, "")
        self.assertIn("--kv-disk DIR", re.sub(r"\x1b\[[0-9;]*m", "", done.stdout))

    def complete(self, script, *words):
        """What bash offers behind these words."""
        quoted = " ".join("'%s'" % word for word in words)
        text = (f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _loam; "
                'printf "%s\\n" "${COMPREPLY[@]}"')
        return subprocess.run(["bash", "-c", text], stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def test_bash_completes(self):
        with tempfile.NamedTemporaryFile("w", suffix=".bash") as script:
            script.write(made("bash"))
            script.flush()
            self.assertEqual(self.complete(script.name, "loam", "ru"), ["run"])
            self.assertEqual(sorted(self.complete(script.name, "loam", "")), sorted(commands()))
            self.assertEqual(self.complete(script.name, "loam", "run", "--kv-d"), ["--kv-device", "--kv-disk"])
            self.assertEqual(self.complete(script.name, "loam", "ls", "--kv-d"), ["--kv-disk"])
            self.assertEqual(self.complete(script.name, "loam", "run", "-ctk", "q"), ["q8_0"])
            self.assertIn("hata", self.complete(script.name, "loam", "run", "--preset", "h"))
            self.assertEqual(self.complete(script.name, "loam", "run", "-f", "bo"), [])  # bash offers files
            self.assertEqual(self.complete(script.name, "loam", "help", "ser"), ["serve"])

    def test_shells_read_them(self):
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell) is None:
                continue
            with tempfile.NamedTemporaryFile("w") as script:
                script.write(made(shell))
                script.flush()
                done = subprocess.run([shell, "-n", script.name], stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
