//! The errors of a build without a feature, for volumes that need the feature.

use std::sync::Arc;

use buttress::{Device, ErrorKind, MemoryDevice, OpenOptions};
use buttress_format::{Incompat, Superblock};
use buttress_fs::MakeOptions;

/// Where the first superblock lies.
const SUPERBLOCK: u64 = 64 << 10;

/// A volume. Its superblock says that there are extents packed by a codec.
fn volume_with(codec: Incompat) -> Arc<dyn Device> {
    let device = MemoryDevice::new(128 << 20);
    buttress_fs::Filesystem::make(&device, &MakeOptions::default()).expect("made");
    let mut bytes = [0; 4096];
    device.read_at(SUPERBLOCK, &mut bytes).expect("read");
    let mut superblock = Superblock::parse(&bytes, SUPERBLOCK).expect("a superblock");
    superblock.incompat.0 |= codec.0;
    device.write_at(SUPERBLOCK, &superblock.to_bytes(SUPERBLOCK)).expect("written");
    Arc::new(device)
}

/// A volume with a built-in codec opens. A volume with another codec is refused with the codec's
/// name, and is not changed.
#[test]
fn a_codec_that_is_not_built_in_is_refused() {
    let cases = [
        (Incompat::COMPRESS_ZSTD, cfg!(feature = "zstd"), "zstd"),
        (Incompat::COMPRESS_LZO, cfg!(feature = "lzo"), "LZO"),
    ];
    for (codec, is_built_in, name) in cases {
        let opened = OpenOptions::new().open_devices(vec![volume_with(codec)]);
        if is_built_in {
            opened.expect("built in").close().expect("closed");
            continue;
        }
        let error = opened.expect_err("not built in");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(name), "{error}");
    }
    let named = OpenOptions::new().mount_options("compress=zstd");
    assert_eq!(named.is_ok(), cfg!(feature = "zstd"));
}
