//! `buttress fsverity`: files with content that never changes. Its verbs and options have the same
//! names as in the program `fsverity`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use buttress_base::text;
use serde_json::{Value, json};

use crate::client;
use crate::execute::digest_of_host;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location::{Location, show as show_name};
use crate::named::Named;
use crate::order::{Order, VerityAct, VerityTree};
use crate::ui::Ui;

/// The arguments of the verb.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make the Merkle tree of a file. Its content then never changes, and each read is verified.
    Enable {
        /// The file, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
        #[command(flatten)]
        tree: Tree,
        /// A file with a signature of the digest, to be stored with the tree. Linux verifies it.
        #[arg(long, value_name = "FILE")]
        signature: Option<PathBuf>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show the digests of files that have a Merkle tree.
    Measure {
        /// The files, as IMG:/path or as paths on a mount.
        #[arg(value_name = "IMG:/PATH | PATH", required = true)]
        places: Vec<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Compute the digests that files would have.
    Digest {
        /// The files, as IMG:/path or as files of the host.
        #[arg(value_name = "IMG:/PATH | PATH", required = true)]
        places: Vec<OsString>,
        #[command(flatten)]
        tree: Tree,
        /// Print only the digest.
        #[arg(long)]
        compact: bool,
        #[command(flatten)]
        devices: Devices,
    },
}

/// How a Merkle tree is made.
#[derive(Debug, clap::Args)]
struct Tree {
    /// The hash function: sha256 or sha512.
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    hash_alg: String,
    /// Bytes of a block: a power of two, from 1024 to the sector size.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block_size: u32,
    /// Up to 32 bytes to hash before each block, in hexadecimal.
    #[arg(long, value_name = "HEX", default_value = "")]
    salt: String,
}

impl Tree {
    fn parse(self) -> Result<VerityTree> {
        let wrong = || Failure::new(Exit::Usage, format!("{}: not hexadecimal", self.salt));
        let digits = self.salt.as_bytes().chunks(2).map(|pair| {
            let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2);
            text.and_then(|text| u8::from_str_radix(text, 16).ok())
        });
        let salt = digits.collect::<Option<_>>().ok_or_else(wrong)?;
        Ok(VerityTree { hash: self.hash_alg, block_size: self.block_size, salt })
    }
}

/// Runs the verb.
///
/// # Errors
///
/// When a file cannot be read, has no tree, or cannot get one.
pub fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let order = |place: &OsString, act: VerityAct, devices: &Devices| {
        let Named { volume, spot, .. } = Named::parse(place)?;
        client::run(&Order::Verity { at: spot, act }, &volume, devices, "fsverity", ui)
    };
    let mut found = Vec::new();
    let mut is_compact = false;
    match args.verb {
        Verb::Enable { place, tree, signature, devices } => {
            let tree = tree.parse()?;
            let signature = match signature {
                Some(path) => std::fs::read(&path).context(|| path.display().to_string())?,
                None => Vec::new(),
            };
            let made = order(&place, VerityAct::Enable { tree, signature }, &devices)?;
            if ui.json() {
                ui.document(&made)?;
            }
            return Ok(Exit::Success);
        }
        Verb::Measure { places, devices } => {
            for place in places {
                found.push((order(&place, VerityAct::Measure, &devices)?, place));
            }
        }
        Verb::Digest { places, tree, compact, devices } => {
            let tree = tree.parse()?;
            is_compact = compact;
            for place in places {
                let made = match Location::parse(&place) {
                    Location::Host(path) => digest_of_host(&path, &tree)?,
                    Location::Volume(_) => {
                        order(&place, VerityAct::Digest { tree: tree.clone() }, &devices)?
                    }
                };
                found.push((made, place));
            }
        }
    }
    show(&found, is_compact, ui)?;
    Ok(Exit::Success)
}

fn show(found: &[(Value, OsString)], is_compact: bool, ui: &Ui) -> Result<()> {
    if ui.json() {
        let all: Vec<_> = found
            .iter()
            .map(|(made, place)| {
                let file = text::encode(place.as_bytes());
                json!({ "file": file, "algorithm": made["algorithm"], "digest": made["digest"] })
            })
            .collect();
        return ui.document(&all);
    }
    for (made, place) in found {
        let word = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        let (hash, digest) = (word("algorithm"), word("digest"));
        let line = match is_compact {
            true => digest,
            false => format!("{hash}:{digest} {}", show_name(place.as_bytes())),
        };
        ui.line(line)?;
    }
    Ok(())
}
