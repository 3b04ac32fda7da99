"""Gathers the pages of the documentation site into one folder, and checks and completes what is built of them.

    python tools/site/pages.py gather build/docs        before the build: pages, examples, API reference
    python tools/site/pages.py finish build/site        after it: links are checked, `llms.txt` is written

`make docs` does both. The pages of ``docs/`` are Markdown as GitHub reads it, and become what Python-Markdown reads.
Examples, changelog and contributing guide are pages of the site too. The reference has one page for each public module.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import griffe
import yaml

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(\s*)```(.*)$")
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)#\s]+)(#[^)\s]*)?\)")
ITEM = re.compile(r"^( *)([-*]|\d+\.) ")

GATHERED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages from outside of ``docs/``, and their place in the site."""

PICTURES = (".svg", ".png", ".webp")

REFERENCE = {
    "headrace": "The names of a training script.",
    "headrace.preparing": "Text, records and media into stores.",
    "headrace.copying": "Stores into stores.",
    "headrace.stores": "Layouts on disk.",
    "headrace.samples": "What a record becomes.",
    "headrace.samples.recipe": "Recipes, as structs.",
    "headrace.samples.masking": "Loss masks.",
    "headrace.samples.templates": "Chat templates.",
    "headrace.samples.media": "Types, decoders and cookers of media.",
    "headrace.datasets": "Datasets, blends and the run.",
    "headrace.datasets.media": "Datasets of media.",
    "headrace.datasets.metadataset": "Mixes from YAML files.",
    "headrace.encoders": "Task encoders.",
    "headrace.plan": "Orders, batches, ranks: integers only.",
    "headrace.plan.packing": "Plans of packs.",
    "headrace.loader": "Batches of a rank.",
    "headrace.integrations.numpy": "NumPy and JAX.",
    "headrace.integrations.stateful": "Trainers that take torchdata's loader.",
    "headrace.integrations.transformers": "Hugging Face's Trainer and TRL.",
    "headrace.integrations.lightning": "Lightning and Fabric.",
    "headrace.integrations.torchtitan": "torchtitan.",
    "headrace.integrations.megatron": "Megatron-LM.",
    "headrace.tracing": "What a step was fed.",
    "headrace.inspect": "What the commands show, as structs.",
    "headrace.inspect.views": "What the pages of `headrace ui` show, as structs.",
    "headrace.errors": "Exceptions, with the exit codes of the commands.",
    "headrace.testing": "Contract tests for stores, readers and kinds of work of your own.",
    "headrace.compat.energon": "The names of Energon.",
    "headrace.compat.megatron": "The names of Megatron.",
    "headrace.compat.torchtune": "The names of torchtune.",
    "headrace.compat.astrai": "The names of AstrAI.",
}
"""The modules of the reference, in its order, and what each is about."""


def gather(docs: Path) -> None:
    """Write all pages below ``docs``."""
    shutil.rmtree(docs, ignore_errors=True)
    for path in sorted((ROOT / "docs").glob("**/*")):
        target = docs / path.relative_to(ROOT / "docs")
        if path.suffix == ".md":
            write(target, page_of(path.read_text(encoding="utf-8"), path, target, docs))
        elif path.suffix in PICTURES:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    for name, place in GATHERED.items():
        write(docs / place, page_of((ROOT / name).read_text(encoding="utf-8"), ROOT / name, docs / place, docs))
    write(docs / "examples.md", "\n".join(examples()))
    names = entries(loaded())
    for module, found in names.items():
        write(docs / "reference" / f"{place_of(module)}.md", "\n".join(reference_page(module, found)))
    write(docs / "reference" / "index.md", "\n".join(reference_index(names)))
    table = {}
    for module, found in names.items():
        for name in found:
            table[f"{module}.{name}"] = table[name] = f"{module}.{name}"
    (docs.parent / "names.json").write_text(json.dumps(table), encoding="utf-8")


def write(target: Path, text: str) -> None:
    """Write one page, and the folder for it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")


def page_of(text: str, source: Path, target: Path, docs: Path) -> str:
    """Return a page as Python-Markdown reads it: fences, lists and links."""
    lines: list[str] = []
    in_fence, in_list = False, False
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence:
            kind = fence[2].split(" ")[0]
            if not in_fence:
                line = f"{fence[1]}```{'text' if kind in ('', 'tree') else kind}"
            in_fence = not in_fence
        elif not in_fence:
            item = ITEM.match(line)
            in_list = bool(item) or (in_list and (not line or line.startswith(" ")))
        indent = len(line) - len(line.lstrip(" "))
        # Items within items stand at two columns here, and at four in Python-Markdown.
        lines.append(" " * indent + line if in_list and not in_fence and indent > 0 else line)
    return LINK.sub(lambda link: moved(link, source, target, docs), "\n".join(lines))


def moved(link: re.Match[str], source: Path, target: Path, docs: Path) -> str:
    """Return a link of a page as the site has it; links to files that the site lacks become plain text."""
    words, path, anchor = link[1], link[2], link[3] or ""
    if path.startswith(("http:", "https:", "mailto:")):
        return link[0]
    to = (source.parent / path).resolve()
    if not to.exists():
        raise SystemExit(f"{source}: the link {path} leads nowhere; correct it")
    try:
        outside = str(to.relative_to(ROOT))
    except ValueError:
        raise SystemExit(f"{source}: the link {path} leads out of the repository; remove it") from None
    if to.is_relative_to(ROOT / "docs") and to.suffix in (".md", *PICTURES):
        place = docs / to.relative_to(ROOT / "docs")
    elif outside in GATHERED:
        place = docs / GATHERED[outside]
    elif outside == "examples" or outside.startswith("examples/"):
        place, anchor = docs / "examples.md", "" if to.is_dir() else f"#{slug(outside.removeprefix('examples/'))}"
    else:
        return words[1:-1]
    if words[1:-1] in (path, to.name) and to.suffix == ".md":
        words = f"[{title_of(to)}]"
    return f"{words}({relative(place, target)}{anchor})"


def title_of(page: Path) -> str:
    """Return the heading of a page, which a link that names its file is called by."""
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def relative(place: Path, page: Path) -> str:
    """Return the path from a page to another file of the site."""
    up = [".."] * len(page.parent.relative_to(Path(*page.parent.parts[: common(place, page)])).parts)
    return "/".join([*up, *place.parts[common(place, page) :]])


def common(one: Path, other: Path) -> int:
    """Return the number of folders that two files share."""
    pairs = zip(one.parent.parts, other.parent.parts, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.parent.parts), len(other.parent.parts)))


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def examples() -> Iterator[str]:
    """The page of all programs."""
    yield "# Examples"
    yield ""
    yield "Each of these is a program of under 60 lines, which the tests run; they are in the folder `examples`."
    for path in sorted((ROOT / "examples").glob("*.*")):
        kind = "sh" if path.suffix == ".sh" else "python"
        yield f"\n## `{path.name}`\n\n```{kind}"
        yield path.read_text(encoding="utf-8").rstrip()
        yield "```"


def loaded(tag: str | None = None) -> Any:
    """Return the package as griffe reads it, without importing it: of the working tree, or of a tag."""
    if tag is not None:
        return griffe.load_git("headrace", ref=tag, repo=ROOT, search_paths=["src"], submodules=True)
    return griffe.load("headrace", search_paths=[str(ROOT / "src")], submodules=True)


def entries(package: Any) -> dict[str, list[str]]:
    """Return the names of each module's page; one that is on two pages stays on the first."""
    known: set[str] = set()
    names: dict[str, list[str]] = {}
    for module in REFERENCE:
        found = package if module == "headrace" else package[module.removeprefix("headrace.")]
        # A module with `__all__` has those names, a package the imports of its stub, any other module what it defines.
        is_face = "face" in found.members
        public = found.exports
        if public is None:
            public = [
                name
                for name, member in found.members.items()
                if not name.startswith("_") and member.is_alias is is_face and name not in ("face", "PROVIDED")
            ]
        names[module] = []
        for name in sorted(map(str, public), key=lambda name: (name[0].islower(), name.isupper(), name)):
            if name.startswith("__") or found[name].is_module:
                continue
            target = found[name].final_target.path if found[name].is_alias else found[name].path
            if target in known or not found[name].has_docstring:
                continue
            known.add(target)
            names[module].append(name)
    return names


def place_of(module: str) -> str:
    """Return the name of a module's page."""
    return module.removeprefix("headrace.").replace(".", "-")


def reference_page(module: str, names: list[str]) -> Iterator[str]:
    """The page of one module, which mkdocstrings fills."""
    yield f"# {module}\n\n{REFERENCE[module]}\n"
    yield f"::: {module}\n    options:\n      members: false\n      show_root_heading: false\n      heading_level: 1\n"
    for name in names:
        yield f"::: {module}.{name}\n"


def reference_index(names: dict[str, list[str]]) -> Iterator[str]:
    """The page that lists all modules and their names."""
    yield "# Reference\n"
    yield "Every public name, from its docstring. What is not listed here may change in any release.\n"
    yield "| module | |\n|---|---|"
    for module, found in names.items():
        links = ", ".join(f"[{name}]({place_of(module)}.md#{module}.{name})" for name in found)
        yield f"| [{module}]({place_of(module)}.md) | {REFERENCE[module]} {links} |"


class Html(HTMLParser):
    """The anchors, links and text of one built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note anchors and links."""
        given = dict(attrs)
        for name in ("id", "name"):
            if given.get(name):
                self.anchors.add(str(given[name]))
        target = given.get("href") if tag in ("a", "link") else given.get("src")
        if target:
            self.links.append(html.unescape(target))


def with_contents(text: str) -> str:
    """Return a page of the reference with its names on the right; the builder lists only headings of Markdown."""
    names = re.findall(r'<h2 id="([\w.]+)" class="doc', text)
    items = (
        f'<li class="md-nav__item"><a href="#{name}" class="md-nav__link"><span class="md-ellipsis">'
        f"{name.rpartition('.')[2]}</span></a></li>"
        for name in names
    )
    title = '<label class="md-nav__title" for="__toc">On this page</label>'
    contents = f'{title}<ul class="md-nav__list" data-md-component="toc" data-md-scrollfix>{"".join(items)}</ul>'
    return re.sub(r'(<nav class="md-nav md-nav--secondary"[^>]*>)\s*(</nav>)', rf"\1{contents}\2", text)


def finish(site: Path) -> None:
    """Complete the reference, check all links of the built site, and write what assistants read."""
    for path in (site / "reference").glob("*/index.html"):
        path.write_text(with_contents(path.read_text(encoding="utf-8")), encoding="utf-8")
    pages = {path: Html(path.read_text(encoding="utf-8")) for path in sorted(site.glob("**/*.html"))}
    wrong = [
        problem
        for path, page in pages.items()
        if path.name != "404.html"
        for problem in broken(path, page, pages, site)
    ]
    if wrong:
        raise SystemExit("\n".join(wrong))
    write(site / "llms.txt", "\n".join(assistants(site)))
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values()):,} links, all of which lead somewhere")


def broken(path: Path, page: Html, pages: dict[Path, Html], site: Path) -> Iterator[str]:
    """What is wrong with the links of a page."""
    for link in page.links:
        if re.match(r"[a-z]+:|//", link):
            continue
        target, anchor = urldefrag(link)
        to = (path.parent / unquote(target)).resolve() if target else path
        if to.is_dir():
            to = to / "index.html"
        if not to.exists():
            yield f"{path.relative_to(site)}: the link {link} leads nowhere"
        elif anchor and to in pages and unquote(anchor) not in pages[to].anchors:
            yield f"{path.relative_to(site)}: {link} names an anchor that the page lacks"


def assistants(site: Path) -> Iterator[str]:
    """`llms.txt`: what there is to read, each page with its first sentence. The pages lie beside it as Markdown."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Plain)
    yield f"# {config['site_name']}\n\n> {config['site_description']}"
    docs = ROOT / config["docs_dir"]
    for title, places in sections(config["nav"]):
        yield f"\n## {title}\n"
        for place in places:
            text = (docs / place).read_text(encoding="utf-8")
            target = site / place
            if not place.startswith("reference/"):
                write(target, text)
                link = place
            else:
                link = f"{place.removesuffix('.md')}/"
            heading = re.search(r"^# (.+)$", text, re.MULTILINE)
            yield f"- [{heading[1] if heading else place}]({link}): {first_sentence(text)}"


def sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """The headings of the tree, each with its pages."""
    for entry in nav:
        [(title, found)] = entry.items()
        yield title, [found] if isinstance(found, str) else list(flat(found))


def flat(nav: list[Any]) -> Iterator[str]:
    """All pages of a part of the tree."""
    for entry in nav:
        found = entry if isinstance(entry, str) else next(iter(entry.values()))
        if isinstance(found, str):
            yield found
        else:
            yield from flat(found)


def first_sentence(text: str) -> str:
    """Return the first sentence of a page that is not a heading, without links."""
    paragraphs = (part for part in text.split("\n\n")[1:] if re.match(r"\w|`(?!``)", part))
    words = " ".join(next(paragraphs, "").split())
    words = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", words)
    return re.split(r"(?<=[.:]) ", words)[0].rstrip(":") if words else ""


class _Plain(yaml.SafeLoader):
    """Reads `mkdocs.yml`; what it names of Python stays a name."""


_Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)

if __name__ == "__main__":
    {"gather": gather, "finish": finish}[sys.argv[1]](Path(sys.argv[2]).resolve())
