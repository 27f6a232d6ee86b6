"""The texts the embedded assets are trained on: Debian packages, the files taken from each, and their licences.

Every package is fetched from Debian's registry by name, so anyone can fetch it again. The share of
a group in the corpus follows from the caps below: the encoding wants counts close to cl100k_base on
English first, then on code, then a fair deal for other languages. The model is trained on
permissively licensed English only (`is_prose`), so that its weights can be under the MIT licence;
the texts of the group PROSE are for it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

ENGLISH = "english"
CODE = "code"
OTHER = "other"
ENCODING_GROUPS = (ENGLISH, CODE, OTHER)
PROSE = "prose"
GROUPS = (*ENCODING_GROUPS, PROSE)

MB = 1_000_000


@dataclass(frozen=True)
class Source:
    """One Debian package and the files that are read from it.

    Attributes:
        package: Name in Debian 12 ("bookworm").
        group: One of ENGLISH, CODE, OTHER, which the encoding is trained on, or PROSE.
        files: Glob patterns relative to the unpacked package.
        reader: Name of a function in `readers.py`.
        licence: As stated in the package's copyright file.
        cap_bytes: At most this much UTF-8 text; whole files are taken, spread evenly over the
            sorted list.
        per_folder_cap_bytes: As cap_bytes for each folder directly above the files (one folder is
            one language).
        is_prose: English under a permissive licence, which the model is trained on.
    """

    package: str
    group: str
    files: tuple[str, ...]
    reader: str
    licence: str
    cap_bytes: int = 100 * MB
    is_prose: bool = False


GPL = "GPL-2.0-or-later"
MAN = "free licences of the pages (Linux-man-pages-copyleft, GPL-2.0-or-later, GPL-3.0-or-later)"
DOC = "usr/share/doc"
HELP = "usr/share/help"

ENGLISH_SOURCES = (
    Source(
        "wordnet-base",
        ENGLISH,
        ("usr/share/wordnet/data.*",),
        "wordnet",
        "WordNet 3.0 (permissive)",
        is_prose=True,
    ),
    Source("dict-gcide", ENGLISH, ("usr/share/dictd/gcide.dict.dz",), "gcide", GPL),
    Source("bible-kjv-text", ENGLISH, ("usr/lib/bible.data",), "bible", "public domain text"),
    Source(
        "anarchism", ENGLISH, (f"{DOC}/anarchism/html/*.html",), "html_text", "GPL-2.0", 12 * MB
    ),
    Source(
        "jargon-text",
        ENGLISH,
        (f"{DOC}/jargon-text/jargon.txt.gz",),
        "plain",
        "public domain",
        is_prose=True,
    ),
    Source(
        "dict-foldoc", ENGLISH, ("usr/share/dictd/foldoc.dict.dz",), "plain", "GFDL-1.1-or-later"
    ),
    Source(
        "dict-devil",
        ENGLISH,
        ("usr/share/dictd/devil.dict.dz",),
        "plain",
        "public domain text",
        is_prose=True,
    ),
    Source(
        "display-dhammapada",
        ENGLISH,
        ("usr/share/display-dhammapada/dhammapada-english*.txt",),
        "plain",
        "public domain text",
    ),
    Source("miscfiles", ENGLISH, ("usr/share/state/*.gz",), "plain", "public domain texts"),
    Source(
        "crawl-common",
        ENGLISH,
        ("usr/share/crawl/dat/descript/*.txt", "usr/share/crawl/dat/database/*speak.txt"),
        "plain",
        GPL,
    ),
    Source(
        "debian-handbook",
        ENGLISH,
        (f"{DOC}/debian-handbook/html/en-US/*.html",),
        "html_text",
        "GPL-2.0-or-later or CC-BY-SA-3.0",
    ),
    Source("gnome-user-docs", ENGLISH, (f"{HELP}/C/*/*.page",), "html_text", "CC-BY-SA-3.0"),
    Source(
        "debian-faq",
        ENGLISH,
        (f"{DOC}/debian/FAQ/*.html",),
        "html_text",
        "free documentation notice of its own",
    ),
    Source(
        "developers-reference",
        ENGLISH,
        ("usr/share/developers-reference/*.html",),
        "html_text",
        GPL,
    ),
    Source(
        "debian-reference-en", ENGLISH, ("usr/share/debian-reference/*.en.html",), "html_text", GPL
    ),
    Source("installation-guide-amd64", ENGLISH, (f"{DOC}/*/en/*.html",), "html_text", "GPL-2.0"),
    Source(
        "python3.11-doc",
        ENGLISH,
        (f"{DOC}/python3.11/html/_sources/**/*.rst.txt",),
        "plain",
        "PSF-2.0",
        12 * MB,
        is_prose=True,
    ),
    Source(
        "rust-src",
        ENGLISH,
        ("usr/src/rustc-*/src/doc/**/*.md",),
        "plain",
        "MIT or Apache-2.0",
        5 * MB,
        is_prose=True,
    ),
    Source(
        "postgresql-doc-15",
        ENGLISH,
        (f"{DOC}/postgresql-doc-15/html/*.html",),
        "html_text",
        "PostgreSQL",
        6 * MB,
        is_prose=True,
    ),
    Source(
        "linux-doc-6.1",
        ENGLISH,
        (f"{DOC}/linux-doc-6.1/Documentation/[a-su-z]*/**/*.rst.gz",),
        "plain",
        "GPL-2.0",
        6 * MB,
    ),
    Source("git-doc", ENGLISH, (f"{DOC}/git-doc/**/*.txt",), "plain", "GPL-2.0", 3 * MB),
    Source("vim-doc", ENGLISH, (f"{DOC}/vim/html/*.html",), "html_text", "OPL-1.0, Vim", 3 * MB),
    Source(
        "octave-doc", ENGLISH, (f"{DOC}/octave/**/*.html",), "html_text", "GPL-3.0-or-later", 2 * MB
    ),
    Source(
        "perl-modules-5.36",
        ENGLISH,
        ("usr/share/perl/5.36.0/**/*.pod",),
        "plain",
        "GPL-1.0-or-later or Artistic",
        3 * MB,
    ),
    Source("manpages", ENGLISH, ("usr/share/man/man*/*.gz",), "man", MAN),
    Source("manpages-dev", ENGLISH, ("usr/share/man/man*/*.gz",), "man", MAN),
)

CODE_SOURCES = (
    Source(
        "libpython3.11-stdlib", CODE, ("usr/lib/python3.11/**/*.py",), "plain", "PSF-2.0", 12 * MB
    ),
    Source(
        "golang-1.19-src", CODE, ("usr/share/go-1.19/src/**/*.go",), "plain", "BSD-3-Clause", 6 * MB
    ),
    Source(
        "rust-src",
        CODE,
        ("usr/src/rustc-*/library/**/*.rs", "usr/src/rustc-*/compiler/**/*.rs"),
        "plain",
        "MIT or Apache-2.0",
        8 * MB,
    ),
    Source("libboost1.74-dev", CODE, ("usr/include/boost/**/*.hpp",), "plain", "BSL-1.0", 5 * MB),
    Source("libc6-dev", CODE, ("usr/include/**/*.h",), "plain", "LGPL-2.1-or-later", 2 * MB),
    Source("node-lodash", CODE, ("usr/share/nodejs/lodash/*.js",), "plain", "MIT", 2 * MB),
    Source(
        "node-typescript",
        CODE,
        ("usr/share/nodejs/typescript/lib/*.ts",),
        "plain",
        "Apache-2.0",
        3 * MB,
    ),
    Source(
        "perl-modules-5.36",
        CODE,
        ("usr/share/perl/5.36.0/**/*.pm",),
        "plain",
        "GPL-1.0-or-later or Artistic",
        2 * MB,
    ),
    Source(
        "linux-doc-6.1",
        CODE,
        (f"{DOC}/linux-doc-6.1/Documentation/**/*.yaml.gz",),
        "plain",
        "GPL-2.0",
        1 * MB,
    ),
)

HANDBOOK_LANGUAGES = """
    ar-MA cs-CZ da-DK de-DE el-GR es-ES fa-IR fr-FR id-ID it-IT ja-JP ko-KR nb-NO nl-NL pl-PL pt-BR ro-RO ru-RU sv-SE
    tr-TR vi-VN zh-CN zh-TW
""".split()
GNOME_LANGUAGES = "ca cs da de el es fa fi fr he hi hu id it ja ko nl pl pt_BR ro ru sv ta te tr uk vi zh_CN".split()
MAN_LANGUAGES = "de es fr it ja nl pl pt-br ru uk zh".split()

OTHER_SOURCES = (
    *(
        Source(
            "debian-handbook",
            OTHER,
            (f"{DOC}/debian-handbook/html/{language}/*.html",),
            "html_text",
            "GPL-2.0-or-later or CC-BY-SA-3.0",
            MB,
        )
        for language in HANDBOOK_LANGUAGES
    ),
    *(
        Source(
            "gnome-user-docs",
            OTHER,
            (f"{HELP}/{language}/*/*.page",),
            "html_text",
            "CC-BY-SA-3.0",
            MB // 4,
        )
        for language in GNOME_LANGUAGES
    ),
    *(
        Source(
            f"manpages-{language}", OTHER, ("usr/share/man/*/man*/*.gz",), "man", MAN, 3 * MB // 4
        )
        for language in MAN_LANGUAGES
    ),
    Source(
        "debian-reference-ja",
        OTHER,
        ("usr/share/debian-reference/*.ja.html",),
        "html_text",
        GPL,
        MB,
    ),
    Source(
        "debian-reference-zh-cn",
        OTHER,
        ("usr/share/debian-reference/*.zh-cn.html",),
        "html_text",
        GPL,
        MB,
    ),
)

PROSE_SOURCES = (
    Source(
        "apache2-doc",
        PROSE,
        (f"{DOC}/apache2-doc/manual/en/**/*.html",),
        "html_text",
        "Apache-2.0",
        is_prose=True,
    ),
    Source(
        "sqlite3-doc",
        PROSE,
        (f"{DOC}/sqlite3/*.html",),
        "html_text",
        "public domain",
        is_prose=True,
    ),
    Source(
        "python-django-doc",
        PROSE,
        (f"{DOC}/python-django-doc/html/**/*.html",),
        "html_text",
        "BSD-3-Clause",
        8 * MB,
        True,
    ),
    Source(
        "python-sqlalchemy-doc",
        PROSE,
        (f"{DOC}/python-sqlalchemy-doc/rst/**/*.rst",),
        "plain",
        "MIT",
        6 * MB,
        True,
    ),
    Source(
        "python-sklearn-doc",
        PROSE,
        (f"{DOC}/python-sklearn-doc/html/_sources/**/*.rst.txt",),
        "plain",
        "BSD-3-Clause",
        is_prose=True,
    ),
    Source(
        "wamerican-huge",
        PROSE,
        ("usr/share/dict/american-english-huge",),
        "plain",
        "SCOWL (permissive)",
    ),
)

SOURCES = (*ENGLISH_SOURCES, *CODE_SOURCES, *OTHER_SOURCES, *PROSE_SOURCES)
