//! Values of options.

use buttress_format::{CsumType, Profile};
use buttress_fs::Codec;

use crate::size;

/// Reads the name of a checksum.
///
/// # Errors
///
/// A sentence with the names.
pub fn csum(text: &str) -> Result<CsumType, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "crc32c" => CsumType::Crc32c,
        "xxhash" | "xxhash64" => CsumType::Xxhash64,
        "sha256" => CsumType::Sha256,
        "blake2" | "blake2b" => CsumType::Blake2b,
        _ => return Err("one of crc32c, xxhash, sha256, blake2".to_owned()),
    })
}

/// A compression, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing(pub(crate) Option<Codec>);

pub(crate) fn codec(text: &str) -> Result<Packing, String> {
    match text {
        "no" | "none" => Ok(Packing(None)),
        text => Codec::parse(text)
            .map(|codec| Packing(Some(codec)))
            .ok_or_else(|| "one of zlib[:1-9], lzo, zstd[:1-15], no".to_owned()),
    }
}

pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    Profile::parse(text).ok_or_else(|| {
        let known: Vec<_> = Profile::ALL.iter().map(|profile| profile.name()).collect();
        format!("one of {}", known.join(", "))
    })
}

pub(crate) fn nodesize(text: &str) -> Result<u32, String> {
    match size::parse(text)? {
        bytes @ (4096 | 8192 | 16384 | 32768 | 65536) => {
            Ok(u32::try_from(bytes).expect("at most 64 KiB"))
        }
        _ => Err("one of 4k, 8k, 16k, 32k, 64k".to_owned()),
    }
}
