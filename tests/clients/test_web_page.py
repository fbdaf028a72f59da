"""The page of ``llmk-web`` in a real browser: with a model that writes what the test says, and with the demo model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import live
import pytest
from browser import answered, ask, ready, tab
from scripted_model import Prompt, Turn, scripted_service
from served import LLMK, Served

PAGE = "llmk_web"
WRITTEN = """# A title

A **bold** and *slanted* `word`, [a link](https://elsewhere.example/a?b=1), ~~no~~ and 2 * 3 * 4 snake_case_name.

```python
def f(x):  # a comment
    return "</script><b>"
```

| a | b |
| :-- | --: |
| 1 \\| 2 | **3** |

1. one
   - nested
2. two

> quoted
"""
HOSTILE = """<script>document.title = "owned"; alert(1)</script>
<img src=x onerror="alert(2)"><svg onload=alert(3)><iframe srcdoc="<script>alert(4)</script>"></iframe>
[a](javascript:alert(5)) [b](JaVaScRiPt:alert(6)) [c](data:text/html,<script>alert(7)</script>)
[d]( java\tscript:alert(8))
[e](vbscript:x) [f](https://x.example/" onmouseover="alert(9)) <javascript:alert(10)> <https://x.example/"onclick=alert(1)>
![pixel](https://elsewhere.example/pixel.png?secret=1) ![x](x" onerror="alert(11))
<style>body { display: none }</style><link rel=stylesheet href=https://elsewhere.example/x.css><base href=https://e.example>
<form action=https://elsewhere.example><input name=key></form><meta http-equiv=refresh content="0;url=https://e.example">

```html"><script>alert(12)</script>
</code></pre><script>alert(13)</script>
```

| <img src=x onerror=alert(14)> | b |
| --- | --- |
| <script>alert(15)</script> | [x](javascript:alert(16)) |

<details open ontoggle=alert(17)> &lt;script&gt;alert(18)&lt;/script&gt; \\<script\\>
"""
HARMLESS = {
    "a",
    "article",
    "blockquote",
    "br",
    "button",
    "code",
    "del",
    "details",
    "div",
    "em",
    "h3",
    "hr",
    "label",
    "li",
}
HARMLESS |= {"ol", "p", "path", "pre", "span", "strong", "summary", "svg", "table", "tbody", "td", "textarea", "th"}
HARMLESS |= {"thead", "tr", "ul"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("page") / "log", "--port", "0")
    yield server
    server.close()


def scripted(drive: Callable[[str], None], turn_of: Callable[[Prompt], Turn], **options: Any) -> None:
    """Runs ``drive`` with the address of a server whose model writes what ``turn_of`` says."""

    async def scenario(served: live.Live) -> None:
        await asyncio.to_thread(drive, f"http://127.0.0.1:{served.address[1]}")

    live.run(scenario, scripted_service(turn_of, PAGE, **options), seconds=240)


def elements(page: Any) -> list[dict[str, Any]]:
    """Names and attributes of all elements in the messages."""
    script = """() => [...document.querySelectorAll('#messages *')].map((e) =>
        ({name: e.localName, attributes: Object.fromEntries([...e.attributes].map((a) => [a.name, a.value]))}))"""
    found: list[dict[str, Any]] = page.evaluate(script)
    return found


def test_what_a_hostile_model_writes_is_text() -> None:
    def drive(url: str) -> None:
        with tab(url) as page:
            ready(page)
            page.click("#toggle-settings")
            page.fill("#set-tools", '[{"name": "x"}]')
            page.locator("#settings").get_by_role("button", name="Close").click()
            ask(page, "<img src=x onerror=alert(0)>")
            answer = answered(page)
            assert page.title() == "demo · llmk"
            assert '<script>document.title = "owned"; alert(1)</script>' in answer.text_content()
            for element in elements(page):
                assert element["name"] in HARMLESS, element
                assert not [name for name in element["attributes"] if name.startswith("on") or name == "style"], element
                if element["name"] == "a":
                    assert element["attributes"]["href"].startswith("https://"), element
                    assert element["attributes"]["rel"] == "noopener noreferrer nofollow"
            assert page.locator(".call pre").text_content().count("<script>") == 1
            page.reload()
            assert len(elements(page)) > 20, "the conversation is still there"

    call = ("x", {"y": "<script>alert(1)</script>"})
    scripted(drive, lambda prompt: Turn(HOSTILE.replace("\t", " "), (call,), "<img src=x onerror=alert(19)> thinking"))


@pytest.mark.slow
def test_markdown_is_set() -> None:
    def drive(url: str) -> None:
        with tab(url) as page:
            ready(page)
            ask(page, "Write")
            answer = answered(page)
            text = answer.locator("> .text")
            assert text.locator("h3").text_content() == "A title"
            first = text.locator("p").first
            assert [each.text_content() for each in first.locator("strong, em, code, a, del").all()] == [
                *("bold", "slanted", "word", "a link", "no"),
            ]
            assert "2 * 3 * 4 snake_case_name" in first.text_content()
            assert text.locator("pre code").text_content() == 'def f(x):  # a comment\n    return "</script><b>"'
            assert text.locator(".c-comment").text_content() == "# a comment"
            assert [cell.text_content() for cell in text.locator("td").all()] == ["1 | 2", "3"]
            assert text.locator("td strong").count() == 1
            assert text.locator("ol > li").count() == 2
            assert text.locator("ol ul li").text_content() == "nested"
            assert text.locator("blockquote").text_content() == "quoted"
            thought = answer.locator("details.thinking")
            assert thought.locator("div").text_content() == "Let me think."
            assert not thought.evaluate("e => e.open")
            color = "e => getComputedStyle(e).color"
            assert thought.evaluate(color) != text.evaluate(color), "thinking is dimmed"
            assert re.search(r"\d+ tokens · .+ tokens/s · first token", answer.locator(".stats").text_content())

    scripted(drive, lambda prompt: Turn(WRITTEN, thought="Let me think."))


LONG = (
    *("[" * 50_000, "*a " * 20_000, "_a_" * 20_000, "`" * 30_000, "` `` " * 10_000, "> " * 20_000, "](" * 20_000),
    *("| " * 30_000 + "\n" + "|-" * 30_000, "# " + " " * 50_000 + "x", "```" + " " * 50_000 + "`", "- " * 20_000),
    *("![" * 20_000, "https://" * 5_000, "<" * 50_000, "**a" * 15_000, "a\n" * 20_000, "- a\n" * 5_000, "~~" * 20_000),
    *("\\" * 50_000, " " * 50_000 + "|", "[a](" * 10_000, "```js\n" + "/*" * 9_000, "#" * 40_000 + "x", "1. " * 20_000),
    *(
        "[" * 19_000 + "](",
        "*a " * 6_000,
        "`` ` " * 3_900,
        "x" + "*" * 19_000 + "x",
        "> a\n" * 10_000,
        "a|b\n-|-\n" * 3_000,
    ),
)


@pytest.mark.slow
def test_showing_a_text_takes_time_in_proportion(served: Served) -> None:
    script = """async (text) => {
        const { render } = await import(new URL('pages/web.page/markdown.js', document.baseURI));
        const started = performance.now();
        render(document.createElement('div'), text);
        return performance.now() - started;
    }"""
    with tab(served.url) as page:
        took = {text[:12]: page.evaluate(script, text) for text in LONG}
    slow = {text: milliseconds for text, milliseconds in took.items() if milliseconds > 1500}
    assert not slow, "milliseconds"


@pytest.mark.slow
def test_a_conversation_is_stopped_edited_and_regenerated() -> None:
    def turn_of(prompt: Prompt) -> Turn:
        asked = prompt.texts("user")[-1]
        if asked == "forever":
            return Turn("word " * 200_000)
        system = "".join(prompt.texts("system"))
        return Turn(f"{system}{asked} {len(prompt.messages)}")

    complaints: list[str] = []

    def drive(url: str) -> None:
        with tab(url, complaints=complaints) as page:
            ready(page)
            ask(page, "forever")
            page.wait_for_function("() => document.querySelector('.message.assistant .text').textContent.length > 500")
            page.click("#stop")
            assert "stopped" in answered(page).locator(".stats").text_content()
            page.locator(".message.user").get_by_label("Edit").first.click()
            page.fill(".edit", "first")
            page.get_by_role("button", name="Save and send").click()
            page.wait_for_function("() => document.querySelector('.message.assistant .text').textContent === 'first 2'")
            ask(page, "second")
            assert answered(page, 2).locator("> .text").text_content() == "second 4"
            page.click("#toggle-settings")
            page.fill("#set-system", "Be short. ")
            answered(page, 1).get_by_label("Regenerate").click()
            page.wait_for_function("() => document.querySelectorAll('.message').length === 2")
            assert answered(page).locator("> .text").text_content() == "Be short.first 3"
            answered(page).get_by_label("Edit").click()
            page.fill(".edit", "I said so")
            page.get_by_role("button", name="Save", exact=True).click()
            assert answered(page).locator("> .text").text_content() == "I said so"
            page.click("#new-chat")
            assert page.locator(".message").count() == 0
            page.fill("#set-temperature", "1000")
            ask(page, "third")
            assert "temperature" in page.locator(".error").text_content()

    scripted(drive, turn_of)
    assert [each.rpartition("status of ")[2] for each in complaints] == ["400 (Bad Request)"], complaints


@pytest.mark.slow
def test_tools_are_called_and_answered_by_the_user() -> None:
    def turn_of(prompt: Prompt) -> Turn:
        results = prompt.texts("tool")
        calls = (("weather", {"city": "Paris"}), ("weather", {"city": "Rome"}))
        return Turn(f"It is {' and '.join(results)}.") if results else Turn("", calls, "I look it up.")

    def drive(url: str) -> None:
        with tab(url) as page:
            ready(page)
            page.click("#toggle-settings")
            page.fill("#set-tools", "[{")
            ask(page, "The weather?")
            assert "not JSON" in page.locator(".error").text_content()
            tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
            page.fill("#set-tools", json.dumps([tool]))
            page.locator(".message.assistant").get_by_label("Regenerate").click()
            page.wait_for_selector(".call textarea")
            assert page.locator(".call").count() == 2
            assert '"city": "Paris"' in page.locator(".call pre").first.text_content()
            page.locator(".call textarea").nth(0).fill("20 degrees")
            page.locator(".call textarea").nth(1).fill("25 degrees")
            page.get_by_role("button", name="Send results").click()
            assert answered(page, 2).locator("> .text").text_content() == "It is 20 degrees and 25 degrees."
            assert page.locator(".call textarea").count() == 0

    scripted(drive, turn_of)


@pytest.mark.slow
def test_a_key_is_asked_for_and_kept_in_the_tab() -> None:
    def drive(url: str) -> None:
        complaints: list[str] = []
        with tab(url, complaints=complaints) as page:
            page.wait_for_selector("#key-dialog[open]")
            page.fill("#key", "wrong")
            page.press("#key", "Enter")
            page.wait_for_function("() => document.querySelector('#key-text').textContent.includes('not accept')")
            page.fill("#key", "secret")
            page.get_by_role("button", name="Use key").click()
            ready(page)
            ask(page, "Hi")
            assert answered(page).locator("> .text").text_content() == "Hello"
            page.reload()
            ready(page)
            kept = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie]")
            assert ["secret" in each for each in kept] == [False, True, False]
        assert {re.sub(r".*status of ", "", each) for each in complaints} == {"401 (Unauthorized)"}

    scripted(drive, lambda prompt: Turn("Hello"), api_keys=["secret"])


@pytest.mark.slow
def test_numbers_memory_and_plan_of_a_real_server(served: Served) -> None:
    with tab(served.url) as page:
        ready(page)
        ask(page, "What is the capital of France?")
        assert "Paris" in answered(page).locator("> .text").text_content()
        page.click("nav a[data-view=live]")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.card')].some((c) => /Answers1since/.test(c.textContent))"
        )
        cards = {card.locator("h2").text_content(): card.text_content() for card in page.locator(".card").all()}
        assert re.search(r"\d ?m?s", cards["Time to first token"])
        assert re.search(r"of [\d,]+ tokens", cards["Cache in use"])
        assert re.search(r"Weights of the model\s*11 MiB", page.locator(".legend").text_content())
        page.click("nav a[data-view=plan]")
        page.wait_for_selector(".site")
        plan = json.loads(served.get("/v1/plan")[1])
        text = page.locator("#plan-page").text_content()
        for choice in plan["choices"]:
            for piece in choice["pieces"] if not choice["parts"] else ():
                assert f"{piece['id']} of {piece['distribution']}" in text
        page.locator(".site details summary").first.click()
        losers = page.locator(".site details[open] li").count()
        assert losers == len(plan["choices"][0]["rejected"]) > 0


def check_accessibility(page: Any, view: str, width: int) -> None:
    """Fails for what axe finds wrong, and for a view that is wider than the window."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install axe-playwright-python"
    )
    source = (Path(axe.__file__).parent / "axe.min.js").read_text()
    # As by an extension: the page's policy holds for the page's own scripts.
    found = page.context.new_cdp_session(page).send(
        "Runtime.evaluate",
        {"expression": f"{source}; axe.run()", "awaitPromise": True, "returnByValue": True},
    )["result"]["value"]
    wrong = [(each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]]
    assert not wrong, (view, wrong)
    assert len(found["passes"]) > 15
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{view} is {wide} wide"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_accessibility(served: Served, scheme: str, width: int) -> None:
    with tab(served.url, width, 844, scheme) as page:
        ready(page)
        for at in ("chat", "answer", "settings", "live", "plan"):
            if at == "answer":
                ask(page, "Hi")
                answered(page)
            elif at == "settings":
                page.click("#toggle-settings")
            elif at != "chat":
                page.evaluate("view => { location.hash = view; }", at)
                page.wait_for_selector("#plan-page .site" if at == "plan" else ".legend")
            check_accessibility(page, at, width)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_keys_show_what_is_left_of_their_quotas(tmp_path: Path, scheme: str, width: int) -> None:
    """A user sees their own, an operator all."""
    state = {"XDG_STATE_HOME": str(tmp_path)}
    limits = ("--requests-per-minute", "1", "--budget", "5000", "--concurrency", "3")
    made = {}
    for name, more in (("ada", limits), ("root", ("--role", "admin"))):
        command = [*LLMK, "keys", "create", name, *more]
        made[name] = subprocess.run(command, env=os.environ | state, capture_output=True, text=True).stdout.strip()
    server = Served(tmp_path / "log", "--port", "0", "--tenants.database", "sqlite", env=state)
    try:
        for name, key in made.items():
            with tab(server.url, width, 844, scheme, complaints=[]) as page:
                page.wait_for_selector("#key-dialog[open]")
                page.fill("#key", key)
                page.press("#key", "Enter")
                ready(page)
                if name == "ada":
                    ask(page, "Hi")
                    answered(page)
                    ask(page, "Hi")
                    page.wait_for_function(
                        "() => document.body.textContent.includes('1 requests per minute is reached')"
                    )
                page.evaluate("() => { location.hash = 'live'; }")
                page.wait_for_selector(".legend")
                own = page.locator("section.panel", has=page.locator("#own-key")).text_content()
                others = page.locator("section.panel", has=page.locator("#all-keys"))
                check_accessibility(page, "keys", width)
                if name == "ada":
                    assert re.search(r"ada \(user\): 1 request so far, .* 1 request over a limit", own), own
                    assert re.search(
                        r"Requests 0 of 1 a minute left.*Budget [\d,]+ of 5,000 tokens in all left", own
                    ), own
                    assert "3 of 3 requests left" in own
                    assert others.is_hidden()
                else:
                    assert "It has no limits." in own
                    assert others.locator("tbody tr").count() == 2
                    assert others.locator("tbody tr").first.text_content().startswith("ada1")
    finally:
        server.close()


@pytest.mark.slow
def test_the_first_load_is_small(served: Served) -> None:
    script = """() => ['navigation', 'resource'].flatMap((type) => performance.getEntriesByType(type))
        .map((entry) => [entry.name, entry.encodedBodySize, entry.decodedBodySize])"""
    with tab(served.url) as page:
        ready(page)
        page.wait_for_load_state("networkidle")
        sizes = page.evaluate(script)
    names = {name.rpartition("/")[2] for name, _, _ in sizes}
    assert {"", "app.js", "style.css", "models"} <= names
    assert sum(sent for _, sent, _ in sizes) <= 100_000, sizes
    assert sum(whole for _, _, whole in sizes) <= 200_000, sizes
