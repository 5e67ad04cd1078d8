//! Builds the programs that a search runs, and returns their paths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::suite::{Job, What};

/// The folder of the fuzzer, with its earlier finds.
pub(crate) const FUZZ: &str = "fuzz";

/// Copies of the built programs. A build during a long search would replace the originals.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    tests: BTreeMap<String, PathBuf>,
    fuzz: Option<PathBuf>,
}

impl Programs {
    /// The program of a job, if it was built.
    pub(crate) fn of(&self, job: &Job) -> Option<PathBuf> {
        match job.what {
            What::Tests { package, .. } => self.tests.get(package).cloned(),
            What::Fuzz { .. } => self.fuzz.as_ref().map(|folder| folder.join(job.name)),
        }
    }

    /// Builds the programs of jobs; with `optimized`, the tests have the optimisations of a
    /// release.
    pub(crate) fn build(jobs: &[&Job], optimized: bool) -> Result<Self, String> {
        let mut packages: Vec<_> = jobs
            .iter()
            .filter_map(|job| match job.what {
                What::Tests { package, .. } => Some(package),
                What::Fuzz { .. } => None,
            })
            .collect();
        packages.sort_unstable();
        packages.dedup();
        let mut programs = Self::default();
        if !packages.is_empty() {
            for (package, program) in tests(&packages, optimized)? {
                // The copy lies beside the original, because some tests find other built programs
                // by their own path.
                let copy = program.with_extension(format!("search-{}", std::process::id()));
                programs.tests.insert(package, copy.clone());
                std::fs::copy(&program, &copy).map_err(|e| format!("{}: {e}", copy.display()))?;
            }
        }
        if jobs.iter().any(|job| matches!(job.what, What::Fuzz { .. })) {
            programs.fuzz = Some(targets()?);
            seed_corpora()?;
        }
        Ok(programs)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in self.tests.values() {
            drop(std::fs::remove_file(program));
        }
    }
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    outside(Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())))
}

/// Returns `command` without the variables that cargo sets for this package. Build scripts that
/// depend on such variables (`ring`) would run again, and a program that is built at the same time
/// would lose its libraries.
fn outside(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let is_of_package =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_of_package) {
            command.env_remove(name);
        }
    }
    command
}

fn tests(packages: &[&str], optimized: bool) -> Result<BTreeMap<String, PathBuf>, String> {
    let mut command = cargo();
    // All packages are built, as by `cargo test --workspace`. Single packages would select other
    // features of their dependencies, and all dependencies would be built twice.
    command.args(["test", "--workspace", "--no-run", "--test", "it"]);
    command.arg("--message-format=json-render-diagnostics");
    if optimized {
        command.args(["--profile", "crash"]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let mut programs = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(program), Some(id)) =
            (message["executable"].as_str(), message["package_id"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"].as_bool() != Some(true) {
            continue;
        }
        if let Some(package) = packages.iter().find(|package| **package == name_of(id)) {
            programs.insert((*package).to_owned(), PathBuf::from(program));
        }
    }
    Ok(programs)
}

/// The name of a package in its identifier: "path+file:///.../crates/fs#buttress-fs@0.1.0".
fn name_of(id: &str) -> &str {
    let name = id.rsplit_once('#').map_or(id, |(_, name)| name);
    name.split_once('@').map_or(name, |(name, _)| name)
}

/// Compiler flags for the coverage of our packages, by which the fuzzer counts branches. Packages
/// of other projects are not covered: their code, such as compression, is not tested here and takes
/// most of the time.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// Further flags for packages that compare bytes of an input with constants: the fuzzer learns the
/// constants. An input of other targets is a list of choices, for which such constants are of no
/// use.
const COMPARES: &str = "-Cllvm-args=-sanitizer-coverage-trace-compares";
const COMPARING: [&str; 5] = ["cache", "format", "nbd", "tree", "volume"];

/// The settings of cargo with these flags.
fn coverage() -> Result<Vec<String>, String> {
    let mut settings = Vec::new();
    let crates = std::fs::read_dir("crates").map_err(|e| format!("crates: {e}"))?;
    let crates = crates.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for name in crates.chain(["hostile".to_owned(), "fuzz".to_owned()]) {
        let compares = COMPARING.contains(&name.as_str()).then_some(COMPARES);
        let flags: Vec<_> = COVERAGE.into_iter().chain(compares).collect();
        settings.push(format!("profile.release.package.buttress-{name}.rustflags={flags:?}"));
    }
    Ok(settings)
}

/// Builds the targets of the fuzzer, which needs nightly. Returns their folder.
fn targets() -> Result<PathBuf, String> {
    let host = host()?;
    let settings = coverage()?;
    let status = outside(Command::new("cargo"))
        .args([
            "+nightly",
            "build",
            "-Zprofile-rustflags",
            "--release",
            "--bins",
            "--target",
            &host,
        ])
        .args(settings.iter().flat_map(|setting| ["--config", setting]))
        .current_dir(FUZZ)
        .env("RUSTFLAGS", "--cfg fuzzing")
        .env("CARGO_TARGET_DIR", "target")
        // This process has the variables of the stable cargo, which would select the wrong
        // toolchain.
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdout(Stdio::inherit())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err("the fuzzer's targets do not build; they need `rustup toolchain install \
                    nightly`, or leave out --fuzz"
            .to_owned());
    }
    std::path::absolute(Path::new(FUZZ).join(fuzzers())).map_err(|e| e.to_string())
}

/// The folder of the fuzzer's programs, relative to the folder of the fuzzer.
pub(crate) fn fuzzers() -> PathBuf {
    Path::new("target").join(host().unwrap_or_default()).join("release")
}

/// Makes the first inputs of the fuzzer, if there are none yet.
fn seed_corpora() -> Result<(), String> {
    let folder = Path::new(FUZZ).join("corpus");
    if folder.exists() {
        return Ok(());
    }
    let status = cargo()
        .args(["run", "--quiet", "--package", "buttress-hostile", "--bin", "seeds", "--"])
        .arg(&folder)
        .stdout(Stdio::null())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("the corpora cannot be made".to_owned()) }
}

/// The triple that this machine's programs are built for.
fn host() -> Result<String, String> {
    let output =
        Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?.stdout;
    let text = String::from_utf8_lossy(&output).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what it builds for".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_names() {
        assert_eq!(name_of("path+file:///a/crates/fs#buttress-fs@0.1.0"), "buttress-fs");
        assert_eq!(name_of("path+file:///a/buttress-fs#buttress-txn@0.1.0"), "buttress-txn");
    }
}
