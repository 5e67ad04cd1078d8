//! Checks the house rules: sizes, circles of imports, order of layers, owners, ranks, waits,
//! invariants, language, paths in documents.
//!
//! # What must hold
//!
//! - A rule holds everywhere, except for the counts in `xtask/tidy-allowed.json`, one for each rule
//!   and crate. A count may fall and never rise; `--settle` writes the counts that have fallen.
//! - A finding is printed with its file and line.

mod anchors;
mod knot;
mod layers;
mod names;
mod owners;
mod paths;
mod prose;
mod sources;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use paths::SourceFiles;
use prose::Prose;
use sources::Source;

/// Lines of production code that a crate may have.
const CRATE_LINES_MAX: usize = 12_000;
/// Share of a crate's lines that its largest circle of imports may have, in percent.
const KNOT_PERCENT_MAX: usize = 15;
/// Lines of production code that a file may have.
const FILE_LINES_MAX: usize = 600;
/// The file with the counts that are allowed for now.
const ALLOWED: &str = "xtask/tidy-allowed.json";
/// The crates that run in seeded runs. A thread that waits outside of the scheduler keeps its turn.
/// A thread that the run does not know may hold a lock for ever.
const SEEDED: [&str; 17] = [
    "store",
    "remote",
    "volume",
    "tree",
    "space",
    "transaction",
    "reserve",
    "sorter",
    "check",
    "txn",
    "log",
    "items",
    "maintenance",
    "data",
    "make",
    "fs",
    "issue",
];
/// Findings of one rule that are printed without `--all`.
const SHOWN_MAX: usize = 5;

/// What to check, and how to report it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only crates and rules with this in the name; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Print every finding, also the allowed ones.
    #[arg(long)]
    all: bool,
    /// Write the counts that have fallen to the list of allowed counts.
    #[arg(long)]
    settle: bool,
    /// Write all counts to the list of allowed counts, also those that have risen.
    #[arg(long, hide = true)]
    accept: bool,
    /// The table as JSON.
    #[arg(long)]
    json: bool,
}

/// The figures of one crate.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    production_lines: usize,
    files: usize,
    largest_file: usize,
    /// Lines of the largest circle among files, in percent of the crate.
    knot_percent: usize,
    /// Lines of the largest circle among the modules that the crate's root names, in percent of the
    /// crate.
    top_knot_percent: usize,
    knot: Vec<String>,
}

/// Counts by rule, then by crate.
type Counts = BTreeMap<String, BTreeMap<String, usize>>;

#[derive(Default)]
struct Report {
    counts: Counts,
    places: BTreeMap<(String, String), Vec<String>>,
}

impl Report {
    fn add(&mut self, rule: &str, unit: &str, count: usize, places: Vec<String>) {
        if count > 0 {
            *self.counts.entry(rule.into()).or_default().entry(unit.into()).or_default() += count;
            self.places.entry((rule.into(), unit.into())).or_default().extend(places);
        }
    }

    fn add_findings(&mut self, rule: &str, unit: &str, file: &Path, found: &[prose::Finding]) {
        let place = |(line, what): &prose::Finding| format!("{}:{line} {what}", file.display());
        self.add(rule, unit, found.len(), found.iter().map(place).collect());
    }
}

/// Checks all files and reports the findings.
pub(crate) fn run(options: &Options) -> ExitCode {
    match look(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn look(options: &Options) -> Result<bool, String> {
    let top = crate::top::top();
    let mut report = Report::default();
    let mut rows = Vec::new();
    let mut all_sources = Vec::new();
    let mut source_files = SourceFiles::default();
    let glossary = fs::read_to_string(top.join("docs/glossary.md")).unwrap_or_default();
    let forbidden = names::forbidden_words(&glossary);
    let workspace = read(&top.join("Cargo.toml"))?;
    for folder in crates(&top)? {
        let name = folder.strip_prefix(&top).unwrap_or(&folder).display().to_string();
        if let Some(crate_name) = name.strip_prefix("crates/") {
            let manifest = read(&folder.join("Cargo.toml"))?;
            let found = layers::used_too_early(&workspace, crate_name, &manifest);
            report.add("layer-order", &name, found.len(), found);
        }
        // A program in the package of a library is a crate of its own.
        for (root, mark) in [("src/lib.rs", ""), ("src/main.rs", " main")] {
            let root = folder.join(root);
            if root.exists() {
                let sources = sources::read_crate(&top, &root)?;
                rows.push(structure(&format!("{name}{mark}"), &sources, &mut report));
                all_sources.extend(sources);
            }
        }
        for file in files(&folder, "rs") {
            source_files.add(&short(&top, &file).to_string_lossy());
            let text = read(&file)?;
            add_language(&mut report, &name, &top, &file, &text, &forbidden);
        }
    }
    for file in files(&top.join("fuzz"), "rs") {
        source_files.add(&short(&top, &file).to_string_lossy());
        add_language(&mut report, "fuzz", &top, &file, &read(&file)?, &forbidden);
    }
    for file in scripts(&top)? {
        let text = read(&file)?;
        add_prose(&mut report, "scripts", &top, &file, &prose::of_script(&text));
        let found = words::in_lines(&text, prose::script_comment, &forbidden);
        report.add_findings("forbidden-words", "scripts", short(&top, &file), &found);
    }
    for file in documents(&top) {
        let found = prose::of_markdown(&read(&file)?, file.parent().unwrap_or(&top));
        add_prose(&mut report, "docs", &top, &file, &found);
        // The changelog speaks of files as they were.
        if !file.ends_with("CHANGELOG.md") {
            let found = paths::dead(&read(&file)?, &source_files);
            report.add_findings("dead-paths", "docs", short(&top, &file), &found);
        }
    }
    let order = read(&top.join("crates/base/src/rank.rs"))?;
    let unused = names::unused_ranks(&order, all_sources.iter());
    report.add("unused-ranks", "crates/base", unused.len(), unused);
    for (file, found) in names::unknown(&all_sources) {
        report.add_findings("unknown-invariants", "crates", Path::new(&file), &found);
    }
    let table = read(&top.join("ARCHITECTURE.md"))?;
    let wrong = names::wrong_order(&order, &table);
    report.add("lock-order", "docs", wrong.len(), wrong);
    let wrong = layers::wrong_order(&workspace, &table);
    report.add("layer-order", "docs", wrong.len(), wrong);

    if options.json {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "crates": rows, "counts": report.counts,
        }));
        println!("{}", text.map_err(|error| error.to_string())?);
    } else {
        print_rows(&rows);
    }
    compare(options, &top, &report)
}

/// Sizes, circles, locks and invariants of one crate.
fn structure(name: &str, sources: &[Source], report: &mut Report) -> Row {
    let lines: usize = sources.iter().map(Source::production_lines).sum();
    let percent = |part: usize| (part * 100).checked_div(lines).unwrap_or(0);
    let (knot, top_knot) = (knot::of_files(sources), knot::of_top_modules(sources));
    let (knot_percent, top_knot_percent) = (percent(knot.lines), percent(top_knot.lines));
    report.add("crate-lines", name, lines.saturating_sub(CRATE_LINES_MAX), Vec::new());
    for (rule, knot, percent) in
        [("knot", &knot, knot_percent), ("top-knot", &top_knot, top_knot_percent)]
    {
        let over = if percent < KNOT_PERCENT_MAX { 0 } else { percent };
        report.add(rule, name, over, vec![knot.modules.join(" ")]);
    }
    for source in sources {
        let lines = source.production_lines();
        if lines > FILE_LINES_MAX {
            let place = format!("{} has {lines} lines", source.path.display());
            report.add("file-lines", name, 1, vec![place]);
        }
        // The locks of tests and of programs that only measure have no order to keep.
        if name.starts_with("crates/") && !name.ends_with("/sim") {
            let found = names::unranked(source);
            report.add_findings("unranked-locks", name, &source.path, &found);
        }
    }
    if SEEDED.iter().any(|crate_name| name.strip_prefix("crates/") == Some(crate_name)) {
        for source in sources {
            let found = names::unseeded(source);
            report.add_findings("unseeded-waits", name, &source.path, &found);
        }
    }
    for (_, row) in owners::ROWS.iter().filter(|(unit, _)| *unit == name) {
        for (file, found) in owners::open_fields(sources, row) {
            report.add_findings("open-owners", name, &sources[file].path, &found);
        }
    }
    for (file, found) in names::undeclared(sources) {
        report.add_findings("undeclared-invariants", name, Path::new(&file), &found);
    }
    Row {
        name: name.into(),
        production_lines: lines,
        files: sources.len(),
        largest_file: sources.iter().map(Source::production_lines).max().unwrap_or(0),
        knot_percent,
        top_knot_percent,
        knot: knot.modules,
    }
}

fn add_prose(report: &mut Report, unit: &str, top: &Path, file: &Path, found: &Prose) {
    let file = short(top, file);
    report.add_findings("wide-comments", unit, file, &found.wide);
    report.add_findings("persons", unit, file, &found.persons);
    report.add_findings("long-sentences", unit, file, &found.long);
    report.add_findings("dead-links", unit, file, &found.dead_links);
}

/// Adds what is wrong in comments, names and sentences of a Rust file.
fn add_language(
    report: &mut Report,
    unit: &str,
    top: &Path,
    file: &Path,
    text: &str,
    forbidden: &[String],
) {
    add_prose(report, unit, top, file, &prose::of_rust(text));
    let found = words::in_lines(text, words::spoken, forbidden);
    report.add_findings("forbidden-words", unit, short(top, file), &found);
    let mut found = words::declared_with(text, forbidden);
    found.extend(words::in_file_name(file, forbidden));
    report.add_findings("forbidden-names", unit, short(top, file), &found);
}

/// A path below the top of the project.
fn short<'p>(top: &Path, file: &'p Path) -> &'p Path {
    file.strip_prefix(top).unwrap_or(file)
}

/// Compares the counts with the allowed counts. Returns true if no count is above its allowed
/// count.
fn compare(options: &Options, top: &Path, report: &Report) -> Result<bool, String> {
    let path = top.join(ALLOWED);
    let allowed: Counts = match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| format!("{ALLOWED}: {error}"))?,
        Err(_) => Counts::new(),
    };
    let count_of = |counts: &Counts, rule: &str, unit: &str| counts.get(rule)?.get(unit).copied();
    // If the table is for scripts, findings go to standard error.
    let say = |line: String| if options.json { eprintln!("{line}") } else { println!("{line}") };
    let (mut good, mut fallen) = (true, 0);
    for (rule, units) in &report.counts {
        for (unit, &count) in units {
            let limit = count_of(&allowed, rule, unit).unwrap_or(0);
            let wanted = options.only.is_empty()
                || options.only.iter().any(|only| rule.contains(only) || unit.contains(only));
            if wanted && (count > limit || options.all) {
                say(format!("{rule} in {unit}: {count}, allowed {limit}"));
                let places = &report.places[&(rule.clone(), unit.clone())];
                let shown = if options.all { places.len() } else { SHOWN_MAX };
                for place in places.iter().take(shown) {
                    say(format!("    {place}"));
                }
                if places.len() > shown {
                    say(format!("    and {} more (--all shows them)", places.len() - shown));
                }
            }
            good &= count <= limit || options.accept;
        }
    }
    for (rule, units) in &allowed {
        for (unit, &limit) in units {
            fallen += usize::from(count_of(&report.counts, rule, unit).unwrap_or(0) < limit);
        }
    }
    if options.settle || options.accept {
        let mut settled = report.counts.clone();
        for (rule, units) in &mut settled {
            for (unit, count) in units.iter_mut() {
                let limit = count_of(&allowed, rule, unit).unwrap_or(0);
                *count = if options.accept { *count } else { (*count).min(limit) };
            }
            units.retain(|_, count| *count > 0);
        }
        settled.retain(|_, units| !units.is_empty());
        let mut text = serde_json::to_string_pretty(&settled).map_err(|e| e.to_string())?;
        text.push('\n');
        fs::write(&path, text).map_err(|error| format!("{ALLOWED}: {error}"))?;
    } else if fallen > 0 {
        eprintln!("{fallen} counts have fallen: cargo xtask tidy --settle");
    }
    Ok(good)
}

fn print_rows(rows: &[Row]) {
    println!(
        "{:<24}{:>8}{:>7}{:>9}{:>8}{:>10}",
        "crate", "lines", "files", "largest", "knot %", "modules %"
    );
    for row in rows {
        println!(
            "{:<24}{:>8}{:>7}{:>9}{:>8}{:>10}",
            row.name,
            row.production_lines,
            row.files,
            row.largest_file,
            row.knot_percent,
            row.top_knot_percent
        );
    }
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Folders of the workspace's members, sorted.
fn crates(top: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<_> = ["crates", "tests"]
        .iter()
        .filter_map(|folder| fs::read_dir(top.join(folder)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .chain(["benches", "benches/page", "xtask"].map(|folder| top.join(folder)))
        .filter(|folder| folder.join("Cargo.toml").exists())
        .collect();
    found.sort();
    if found.is_empty() {
        return Err(format!("no crate below {}", top.display()));
    }
    Ok(found)
}

/// Manifests, and the scripts of CI, of packages and of this crate.
fn scripts(top: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![top.join("Cargo.toml"), top.join("fuzz/Cargo.toml")];
    found.extend(crates(top)?.into_iter().map(|folder| folder.join("Cargo.toml")));
    found.extend(files(&top.join("xtask"), "sh"));
    for folder in [".ci", "packaging"] {
        let entries = fs::read_dir(top.join(folder)).into_iter().flatten().flatten();
        let is_script = |path: &PathBuf| {
            path.is_file() && path.extension().is_none_or(|extension| extension == "toml")
        };
        found.extend(entries.map(|entry| entry.path()).filter(is_script));
    }
    found.sort();
    Ok(found)
}

/// The documents of the project for people.
pub(crate) fn documents(top: &Path) -> Vec<PathBuf> {
    let mut found = files(&top.join("docs"), "md");
    let heads = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"];
    found.extend(heads.map(|file| top.join(file)).into_iter().filter(|file| file.exists()));
    found
}

/// All files below `folder` with this extension, sorted.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|other| other == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
