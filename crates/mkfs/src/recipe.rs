//! What makes two runs equal.

use crate::args::Args;
use crate::exit::{Exit, Failure, Result};
use crate::source::Source;
use crate::transfer::Chain;

/// Settings with which two runs create the same bytes.
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) seed: u64,
    /// The latest time that a file may have, in seconds since 1970.
    pub(crate) epoch: Option<i64>,
}

impl Recipe {
    /// Reads `--seed` and SOURCE_DATE_EPOCH. Returns `None` if neither is given. `images` are the
    /// files of the volume, which are no part of its source.
    pub(crate) fn of(args: &Args, images: &[(u64, u64)]) -> Result<Option<Self>> {
        let text = std::env::var_os("SOURCE_DATE_EPOCH").filter(|text| !text.is_empty());
        let epoch = match text {
            Some(text) => {
                let number = text.to_str().and_then(|text| text.parse().ok());
                let is_one = |second: &i64| *second >= 0;
                Some(number.filter(is_one).ok_or_else(|| {
                    let what = "SOURCE_DATE_EPOCH is no number of seconds since 1970";
                    Failure::new(Exit::Usage, what)
                })?)
            }
            None => None,
        };
        let mut chain = Chain::default();
        match (&args.seed, epoch) {
            (None, None) => return Ok(None),
            (Some(text), _) => chain.add(text.as_bytes()),
            (None, Some(_)) => {
                let named = (&args.label, args.size, args.csum, args.metadata, args.data);
                let more = (args.mixed, args.nodesize, &args.features, args.more.len());
                chain.add(format!("{named:?} {more:?}").as_bytes());
                let special = (&args.subvol, &args.inode_flags, args.shrink);
                if special != (&Vec::new(), &Vec::new(), false) {
                    chain.add(format!("{special:?}").as_bytes());
                }
                if let Some(source) = Source::of(args) {
                    source.add_to(&mut chain, images)?;
                }
            }
        }
        Ok(Some(Self { seed: chain.number(), epoch }))
    }
}
