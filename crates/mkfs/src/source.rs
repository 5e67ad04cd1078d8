//! The sources that fill a volume.
//!
//! # Invariants
//!
//! - **F1** An archive from standard input is read once.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use crate::args::Args;
use crate::brings;
use crate::exit::{Context, Exit, Failure, Result};
use crate::transfer::{
    Census, Chain, Search, Special, digest, digest_archive, open_dir, survey, survey_archive,
};

/// The source that fills a volume.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Everything in a folder.
    Folder(&'a Path),
    /// A tar archive in a file.
    Archive(&'a Path),
    /// A tar archive from standard input.
    Stream,
}

impl<'a> Source<'a> {
    pub(crate) fn of(args: &'a Args) -> Option<Self> {
        let archive = args.from_tar.as_deref().map(|path| match path == Path::new("-") {
            true => Self::Stream,
            false => Self::Archive(path),
        });
        archive.or(args.rootdir.as_deref().map(Self::Folder))
    }

    /// Counts the content of the source. Returns `None` for standard input, which is read only once
    /// (F1). Refuses a path of `special` that the source does not have.
    pub(crate) fn survey(self, special: &Special) -> Result<Option<Census>> {
        let mut search = Search::new(special);
        let census = match self {
            Self::Folder(dir) => {
                search.look_below(dir);
                survey(open_dir(dir)?, &|_| false)?
            }
            Self::Archive(path) => survey_archive(open(path)?, &mut search)?,
            Self::Stream => return Ok(None),
        };
        match search.missing() {
            Some(path) => Err(brings::nothing_at(path, Exit::Usage)),
            None => Ok(Some(census)),
        }
    }

    /// Adds the content of the source to the number from which identifiers are derived.
    pub(crate) fn add_to(self, chain: &mut Chain, images: &[(u64, u64)]) -> Result<()> {
        match self {
            Self::Folder(dir) => digest(open_dir(dir)?, images, chain),
            Self::Archive(path) => digest_archive(open(path)?, chain),
            Self::Stream => {
                let what = "with SOURCE_DATE_EPOCH an archive from standard input needs --seed: \
                            identifiers cannot follow from what was not read yet";
                Err(Failure::new(Exit::Usage, what))
            }
        }
    }
}

/// Opens an archive.
pub(crate) fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).context(|| path.display().to_string())?;
    Ok(BufReader::with_capacity(1 << 20, file))
}
