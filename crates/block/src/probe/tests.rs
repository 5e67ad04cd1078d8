//! Each known signature is named, and noise is not.

use buttress_base::Rng;

use super::*;
use crate::MemoryDevice;

/// An offset, and the bytes at it.
type Write<'a> = (u64, &'a [u8]);

fn name_of(writes: &[Write<'_>]) -> Option<String> {
    let device = MemoryDevice::new(4 << 20);
    for (offset, bytes) in writes {
        device.write_at(*offset, bytes).expect("within the device");
    }
    identify(&device).expect("memory does not fail")
}

/// P1: every signature of the table is found at its place, and not one byte beside it.
#[test]
fn names_every_signature() {
    for signature in SIGNATURES {
        assert_eq!(
            name_of(&[(signature.offset, signature.magic)]).as_deref(),
            Some(signature.name)
        );
        assert_eq!(name_of(&[(signature.offset + 1, signature.magic)]), None);
    }
}

/// Formats that need several checks are named.
#[test]
fn names_the_others() {
    let mark: Write<'_> = (510, b"\x55\xaa");
    let magic: Write<'_> = (0x400 + 56, b"\x53\xef");
    let cases: &[(&str, &[Write<'_>])] = &[
        ("ext2", &[magic]),
        ("ext3", &[magic, (0x400 + 92, b"\x04")]),
        ("ext4", &[magic, (0x400 + 92, b"\x04"), (0x400 + 96, b"\x42\x02")]),
        ("swap", &[(4086, b"SWAPSPACE2")]),
        ("swap", &[(65526, b"SWAPSPACE2")]),
        ("LVM2", &[(512, b"LABELONE"), (536, b"LVM2 001")]),
        ("a RAID member", &[(4096, b"\xfc\x4e\x2b\xa9")]),
        ("a RAID member", &[((4 << 20) - 8192, b"\xfc\x4e\x2b\xa9")]),
        ("FAT", &[mark, (82, b"FAT32   ")]),
        ("FAT", &[mark, (54, b"FAT16   ")]),
        ("ZFS", &[((128 << 10) + 5 * 1024, b"\x0c\xb1\xba\0\0\0\0\0")]),
        ("minix", &[(0x410, b"\x8f\x13"), (0x404, b"\x01\0\x01\0\x0a\0")]),
        ("minix", &[(0x410, b"\x78\x24"), (0x404, b"\x01\0\x01\0\x0a\0")]),
        ("minix", &[(0x418, b"\x5a\x4d"), (0x406, b"\x01\0\x01\0\x0a\0")]),
        ("a GPT partition table", &[mark, (446 + 4, b"\xee"), (512, b"EFI PART")]),
        ("an MBR partition table", &[mark, (446 + 4, b"\x83")]),
    ];
    for (name, writes) in cases {
        assert_eq!(name_of(writes).as_deref(), Some(*name), "{writes:?}");
    }
    assert_eq!(name_of(&[mark]), None, "a mark alone is not a table");
    assert_eq!(name_of(&[(0x410, b"\x8f\x13")]), None, "two bytes alone are no minix");
}

/// P1: devices shorter than any signature are read within their ends.
#[test]
fn survives_short_devices() {
    for len in [1, 2, 511, 512, 513, 1024, 4096, 65536, 65600, 70000] {
        assert_eq!(identify(&MemoryDevice::new(len)).expect("within the device"), None);
    }
}

/// Noise matches no signature.
#[test]
fn noise_has_no_name() {
    let mut bytes = vec![0; 300 << 10];
    Rng::new(1).fill(&mut bytes);
    assert_eq!(name_of(&[(0, &bytes)]), None);
}
