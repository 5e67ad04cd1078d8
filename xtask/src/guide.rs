//! `cargo xtask guide`: runs the commands in the README and all of `docs`, as if by copy and paste.
//!
//! Each page has a shell of its own, in a new folder on a copy of this machine's files. The page
//! fails at the first command that fails; the message has the page, the line and the command.

mod loops;
mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args;

pub(crate) use self::page::Page;

/// The pages to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The pages. The default is all documents that have commands.
    pages: Vec<PathBuf>,
    /// The program. By default it is built.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Fail if a block needs a program that is not here.
    #[arg(long)]
    all: bool,
    /// Print what the pages print.
    #[arg(long)]
    verbose: bool,
    /// The seconds that a page may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u32,
}

/// The shell script that prepares the copy and runs the page.
const INSIDE: &str = include_str!("guide/inside.sh");

/// Lines of the output of a failed block that are shown.
const LINES_SHOWN: usize = 40;

type Result<T, E = String> = std::result::Result<T, E>;

pub(crate) fn run(options: &Options) -> ExitCode {
    match pages(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("guide: {error}");
            ExitCode::FAILURE
        }
    }
}

fn pages(options: &Options) -> Result<bool> {
    let top = crate::top::top();
    let program = match &options.program {
        Some(program) => program.clone(),
        None => built(&top)?,
    };
    let program = fs::canonicalize(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    let files = if options.pages.is_empty() { all(&top)? } else { options.pages.clone() };
    let mut passed = true;
    for file in files {
        let name = file.strip_prefix(&top).unwrap_or(&file).display().to_string();
        let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
        let page = Page::of(&text, &page::has).map_err(|error| format!("{name}:{error}"))?;
        for (line, reason) in &page.left_out {
            println!("{name}:{line}: not run: {reason}");
        }
        for (line, program) in &page.lacking {
            println!("{name}:{line}: SKIPPED: there is no {program}");
        }
        passed &= page.lacking.is_empty() || !options.all;
        if page.blocks == 0 {
            continue;
        }
        let begun = Instant::now();
        match pasted(&page, &program, options) {
            Ok(()) => {
                println!("{name}: {} blocks in {:.1?}", page.blocks, begun.elapsed());
            }
            Err(error) => {
                println!("{name}:{error}");
                passed = false;
            }
        }
    }
    Ok(passed)
}

/// All documents that have commands.
fn all(top: &Path) -> Result<Vec<PathBuf>> {
    let mut found = crate::tidy::documents(top);
    found.sort();
    let mut pages = Vec::new();
    for file in found {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        if page::has_commands(&text) {
            pages.push(file);
        }
    }
    Ok(pages)
}

/// Builds the program as it is tested: without optimisation, and with assertions.
fn built(top: &Path) -> Result<PathBuf> {
    let mut build = crate::programs::cargo();
    build.args(["build", "--quiet", "--package", "buttress-cli"]).current_dir(top);
    let status = build.status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err("the program does not build".to_owned());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or_else(|| top.join("target")).join("debug/buttress"))
}

/// The exclusive right to copy the table of mounts, as the standard input of `inside.sh`, which
/// gives the right up. The tests' module `mounts` of `tests/program` has the rules of the file.
fn copies() -> std::io::Result<fs::File> {
    let path = Path::new("/tmp/buttress-mounts.lock");
    let file = fs::File::open(path).or_else(|_| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::File::create(path)?.set_permissions(mode)?;
        fs::File::open(path)
    })?;
    // The lock belongs to the open file, so it stays when the program has ended.
    let locked = Command::new("flock").arg("0").stdin(file.try_clone()?).status()?;
    if !locked.success() {
        return Err(std::io::Error::other(format!("flock: {locked}")));
    }
    Ok(file)
}

/// Runs a page. An error begins with the line at which the page failed.
fn pasted(page: &Page, program: &Path, options: &Options) -> Result<()> {
    let work = std::env::temp_dir().join(format!("buttress-guide-{}", std::process::id()));
    let error = |error: std::io::Error| format!(" {}: {error}", work.display());
    fs::create_dir_all(work.join("above")).map_err(error)?;
    let write = |name: &str, text: &str| fs::write(work.join(name), text).map_err(error);
    write("script", &page.script)?;
    write("prelude", page::PRELUDE)?;
    write("inside.sh", INSIDE)?;
    let mut inside = Command::new("timeout");
    let limit = options.limit.to_string();
    inside.args(["--foreground", "--kill-after=10", &limit, "unshare", "--mount"]);
    inside.args(["--propagation", "private", "--pid", "--fork", "--kill-child", "bash"]);
    inside.arg(work.join("inside.sh")).arg(&work).arg(program);
    inside.arg(crate::top::top().join("packaging/systemd"));
    inside.stdin(copies().map_err(error)?);
    let before = loops::attached();
    let status = inside.status().map_err(|error| format!(" timeout: {error}"));
    loops::detach_new(&before);
    let read = |name: &str| fs::read_to_string(work.join(name)).unwrap_or_default();
    let (before, last) = (read("output.before"), read("output"));
    let failed = read("failed").lines().next().map(str::to_owned);
    let reached = read("trace").lines().last().map(|line| line.trim_start_matches('+').to_owned());
    fs::remove_dir_all(&work).map_err(error)?;
    if options.verbose {
        print!("{before}{last}");
    }
    let status = status?;
    if status.success() {
        return Ok(());
    }
    let at = failed.or(reached.map(|line| line.trim_start().to_owned())).unwrap_or_default();
    let lines: Vec<_> = last.lines().collect();
    let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
    Err(format!("{at}: {status}; the block has printed:\n{shown}"))
}
