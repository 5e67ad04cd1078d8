//! `cargo xtask dist`: everything that a release has, in `target/dist`, from a clean clone.
//!
//! One static program for each machine goes into all packages, so that they install on any
//! distribution. `--try` installs the Debian package into a new Debian, uses it, removes it, and
//! fails when anything is left.

mod inventory;
mod stage;
mod tool;
mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, ValueEnum};

use self::tool::{Result, run_command};

/// What to make.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only this; everything unless given.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Install the Debian package into a new Debian and try it; needs root and debootstrap.
    #[arg(long)]
    r#try: bool,
}

/// A thing that a release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The static program for x86-64, in an archive with its pages.
    Static,
    /// The same for aarch64.
    Aarch64,
    /// The Debian package.
    Deb,
    /// The RPM package.
    Rpm,
}

/// A machine that the program is built for.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// As Rust names it.
    target: &'static str,
    /// As file names of releases name it.
    name: &'static str,
    /// The C compiler that links, and what runs the program here, where it is another machine's.
    cross: Option<(&'static str, &'static str)>,
}

const X86_64: Machine = Machine { target: "x86_64-unknown-linux-gnu", name: "x86_64", cross: None };
const AARCH64: Machine = Machine {
    target: "aarch64-unknown-linux-gnu",
    name: "aarch64",
    cross: Some(("aarch64-linux-gnu-gcc", "qemu-aarch64-static")),
};

/// A program may have at most this many bytes.
const PROGRAM_MAX: u64 = 20 << 20;

pub(crate) fn run(options: &Options) -> ExitCode {
    match make(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn make(options: &Options) -> Result<()> {
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let dist = PathBuf::from("target/dist");
    std::fs::create_dir_all(&dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    let version = env!("CARGO_PKG_VERSION");
    let mut made = Vec::new();
    if wants(Part::Static) || wants(Part::Deb) || wants(Part::Rpm) {
        let program = program(X86_64)?;
        let tree = dist.join("tree");
        stage::tree(&tree, &program)?;
        if wants(Part::Static) {
            made.push(stage::archive(&dist, &tree, &format!("buttress-{version}-x86_64"))?);
        }
        if wants(Part::Deb) {
            made.push(stage::deb(&dist, &tree, version)?);
        }
        if wants(Part::Rpm) {
            made.push(stage::rpm(&dist, &tree, version)?);
        }
    }
    if wants(Part::Aarch64) {
        let program = program(AARCH64)?;
        let tree = dist.join("tree-aarch64");
        stage::tree_of(&tree, &program, &dist.join("tree"))?;
        made.push(stage::archive(&dist, &tree, &format!("buttress-{version}-aarch64"))?);
    }
    let bom = dist.join(format!("buttress-{version}.cdx.json"));
    inventory::bom(&bom)?;
    made.push(bom);
    sums(&dist, &made)?;
    for file in &made {
        let len = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        println!("{:>8.1} MiB  {}", len as f64 / f64::from(1 << 20), file.display());
    }
    if options.r#try {
        trial::debian(&dist.join(stage::deb_name(version)))?;
    }
    Ok(())
}

/// Builds the static program for a machine, and has it say its version.
fn program(machine: Machine) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.args(["build", "--profile", "dist", "--package", "buttress-cli", "--locked"]);
    build.args(["--target", machine.target]);
    let variable = machine.target.replace('-', "_");
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase());
    build.env(flags, "-C target-feature=+crt-static -C relocation-model=static");
    if let Some((compiler, _)) = machine.cross {
        let linker = format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase());
        build.env(linker, compiler).env(format!("CC_{variable}"), compiler);
        // Where this machine has the target already, rustup says so and does nothing.
        run_command(Command::new("rustup").args(["target", "add", machine.target]))?;
    }
    run_command(&mut build)?;
    let program = PathBuf::from("target").join(machine.target).join("dist/buttress");
    let len = std::fs::metadata(&program).map_err(|error| error.to_string())?.len();
    if len > PROGRAM_MAX {
        return Err(format!("{} has {len} bytes, more than {PROGRAM_MAX}", program.display()));
    }
    let mut says = match machine.cross {
        Some((_, emulator)) => Command::new(emulator),
        None => Command::new(&program),
    };
    if machine.cross.is_some() {
        says.arg(&program);
    }
    run_command(says.arg("--version"))?;
    println!("{}: {len} bytes, static, {}", program.display(), machine.name);
    Ok(program)
}

fn sums(dist: &Path, made: &[PathBuf]) -> Result<()> {
    let names = made.iter().filter_map(|file| file.file_name());
    let output = Command::new("sha256sum").args(names).current_dir(dist).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    std::fs::write(dist.join("SHA256SUMS"), output.stdout).map_err(|error| error.to_string())
}
