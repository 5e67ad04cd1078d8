//! What is printed of items, and checksums.

use buttress_format::Key;
use buttress_tree::Geometry;

/// What is printed of an item.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// Print no names and no values of attributes.
    pub hides_names: bool,
    /// Print each checksum of data.
    pub shows_csums: bool,
}

impl Form {
    /// A name, safe to print.
    pub(crate) fn text(self, name: &[u8]) -> String {
        if self.hides_names { "HIDDEN".to_owned() } else { crate::show(name) }
    }
}

/// A checksum as dump-tree prints it: its bytes in their order.
#[must_use]
pub fn csum(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |digits, byte| digits + &format!("{byte:02x}"))
}

/// The checksums of sectors, with the address of each sector, in lines of 16 bytes or of one.
pub(crate) fn each_csum(key: &Key, bytes: &[u8], geometry: &Geometry) -> Vec<String> {
    let size = geometry.csum.size();
    let sums = bytes.chunks_exact(size).zip(0_u64..).map(|(sum, index)| {
        let at = key.offset.saturating_add(index * u64::from(geometry.sectorsize));
        format!("[{at}] {}", csum(sum))
    });
    let sums: Vec<String> = sums.collect();
    sums.chunks((16 / size).max(1)).map(|line| line.join(" ")).collect()
}

/// The range that a run of checksums covers.
pub(crate) fn csums(key: &Key, len: usize, geometry: &Geometry) -> String {
    let sectors = (len / geometry.csum.size()) as u64;
    let bytes = sectors.saturating_mul(u64::from(geometry.sectorsize));
    let end = key.offset.saturating_add(bytes);
    format!("range start {} end {end} length {bytes}", key.offset)
}
