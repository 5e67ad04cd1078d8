//! fs-verity of files, and digests of files of the host.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use buttress_format::{HashKind, MerkleBuilder, VERITY_SALT_MAX, VerityDescriptor};
use buttress_fs::{Filesystem, VerityOptions};
use buttress_fuse::KernelSync;
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{PathInVolume, VerityAct, VerityTree};

/// Bytes read at once: a whole number of blocks of any size.
const READ_BYTES: usize = 1 << 20;

/// Carries out an action on a file. Returns an object with the hash function and the digest.
pub(super) fn carry_out(
    fs: &Filesystem,
    at: &PathInVolume,
    act: &VerityAct,
    kernel_sync: Option<&KernelSync>,
) -> Result<Value> {
    let inode = at.inode(fs)?;
    let name = || at.text.clone();
    match act {
        VerityAct::Enable { .. } if kernel_sync.is_some() => {
            // Only the kernel knows which programs have the file open for writing.
            let what = "the volume is mounted: the program fsverity enables it by the mount";
            Err(Failure::new(Exit::Refused, format!("{}: {what}", at.text)))
        }
        VerityAct::Enable { tree, signature } => {
            let (hash, _) = parts(tree)?;
            if inode.has_verity() {
                let what = "it has fs-verity already";
                return Err(Failure::new(Exit::Failure, format!("{}: {what}", at.text)));
            }
            let (salt, signature) = (tree.salt.clone(), signature.clone());
            let options = VerityOptions { hash, block_size: tree.block_size, salt, signature };
            let made = inode.enable_verity(&options).context(name)?;
            fs.commit().context(name)?;
            Ok(told(&made))
        }
        VerityAct::Measure => {
            let known = inode.verity().context(name)?;
            let known = known.ok_or_else(|| {
                Failure::new(Exit::Failure, format!("{}: it has no fs-verity", at.text))
            })?;
            Ok(told(&known))
        }
        VerityAct::Digest { tree } => {
            if let Some(kernel_sync) = kernel_sync {
                kernel_sync.write_back().context(name)?;
            }
            let mut at = 0;
            let read = |buf: &mut [u8]| -> buttress_fs::Result<usize> {
                let len = inode.peek_at(at, buf)?;
                at += len as u64;
                Ok(len)
            };
            Ok(told(&descriptor(tree, inode.attr().size, read)?.context(name)?))
        }
    }
}

/// The digest that a file of the host would have, as an object.
///
/// # Errors
///
/// If the file cannot be read, or for a tree that the format does not allow.
pub fn digest_of_host(path: &Path, tree: &VerityTree) -> Result<Value> {
    let name = || path.display().to_string();
    let mut file = File::open(path).context(name)?;
    let size = file.metadata().context(name)?.len();
    Ok(told(&descriptor(tree, size, |buf| file.read(buf))?.context(name)?))
}

fn told(of: &VerityDescriptor) -> Value {
    let digest: String = of.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "algorithm": of.hash.name(), "digest": digest })
}

/// The hash function, and the base-2 logarithm of the block size.
fn parts(tree: &VerityTree) -> Result<(HashKind, u8)> {
    let usage = |what: String| Failure::new(Exit::Usage, what);
    let hash = HashKind::parse(&tree.hash)
        .ok_or_else(|| usage(format!("{}: hash functions are sha256 and sha512", tree.hash)))?;
    let size = tree.block_size;
    if !size.is_power_of_two() || !(1024..=65_536).contains(&size) {
        return Err(usage(format!("{size}: a block has a power of two of bytes, from 1024 on")));
    }
    if tree.salt.len() > VERITY_SALT_MAX {
        return Err(usage(format!("a salt has at most {VERITY_SALT_MAX} bytes")));
    }
    Ok((hash, size.trailing_zeros() as u8))
}

/// The descriptor for the content that `read` returns, piece by piece.
fn descriptor<E>(
    tree: &VerityTree,
    size: u64,
    mut read: impl FnMut(&mut [u8]) -> std::result::Result<usize, E>,
) -> Result<std::result::Result<VerityDescriptor, E>> {
    let (hash, log_block) = parts(tree)?;
    let mut builder = MerkleBuilder::new(hash, log_block, &tree.salt, size);
    let mut buffer = vec![0; READ_BYTES];
    let mut left = size;
    while left > 0 {
        let want = READ_BYTES.min(usize::try_from(left).unwrap_or(READ_BYTES));
        let mut filled = 0;
        while filled < want {
            match read(&mut buffer[filled..want]) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) => return Ok(Err(error)),
            }
        }
        if filled < want {
            return Err(Failure::new(Exit::Failure, "the file became shorter meanwhile"));
        }
        for block in buffer[..filled].chunks(1 << log_block) {
            builder.add(block, &mut |_, _| ());
        }
        left -= filled as u64;
    }
    let root = builder.finish(&mut |_, _| ());
    let (salt, signature) = (tree.salt.clone(), Vec::new());
    Ok(Ok(VerityDescriptor { hash, log_block, salt, data_size: size, root, signature }))
}
