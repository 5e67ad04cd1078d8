//! Items of a tree in key order, in a temporary file.
//!
//! # Invariants
//!
//! - **SP1** A spool gives its items back in the order in which they came, any number of times.
//!
//! # On disk
//!
//! A temporary file without a name: for each item its key of 17 bytes, the length of its payload
//! in two bytes, and the payload.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use buttress_format::{Key, header::ITEM_LEN};

/// Items that are being collected.
#[derive(Debug)]
pub struct Spool {
    file: BufWriter<File>,
    sizes: Sizes,
}

/// The sizes of a list of items, as a leaf counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// The number of items.
    pub count: u64,
    /// Bytes of all items, their heads included.
    pub bytes: u64,
    /// Bytes of the largest item, its head included.
    pub largest: u64,
}

impl Sizes {
    /// Counts `count` items with payloads of `payload` bytes.
    pub fn add(&mut self, count: u64, payload: usize) {
        let len = (payload + ITEM_LEN) as u64;
        self.count += count;
        self.bytes += len * count;
        if count > 0 {
            self.largest = self.largest.max(len);
        }
    }
}

/// An item: its key and its payload.
pub type Item = (Key, Vec<u8>);

impl Spool {
    /// An empty spool.
    ///
    /// # Errors
    ///
    /// When no temporary file can be made.
    pub fn new() -> io::Result<Self> {
        let file = BufWriter::with_capacity(256 << 10, tempfile::tempfile()?);
        Ok(Self { file, sizes: Sizes::default() })
    }

    /// Adds an item after all others.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be written.
    pub fn push(&mut self, key: &Key, payload: &[u8]) -> io::Result<()> {
        let len = u16::try_from(payload.len()).map_err(io::Error::other)?;
        self.file.write_all(&key.to_bytes())?;
        self.file.write_all(&len.to_le_bytes())?;
        self.file.write_all(payload)?;
        self.sizes.add(1, payload.len());
        Ok(())
    }

    /// The sizes of all items.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Reads the items from the first on.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be written or read.
    pub fn items(&mut self) -> io::Result<Items> {
        self.file.flush()?;
        let mut file = self.file.get_ref().try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Items { file: BufReader::with_capacity(256 << 10, file), left: self.sizes.count })
    }
}

/// Reads a spool.
#[derive(Debug)]
pub struct Items {
    file: BufReader<File>,
    left: u64,
}

impl Items {
    fn read(&mut self) -> io::Result<Item> {
        let mut head = [0; Key::LEN + 2];
        self.file.read_exact(&mut head)?;
        let key = Key::parse(&head[..Key::LEN]).map_err(io::Error::other)?;
        let len = u16::from_le_bytes([head[Key::LEN], head[Key::LEN + 1]]);
        let mut payload = vec![0; usize::from(len)];
        self.file.read_exact(&mut payload)?;
        Ok((key, payload))
    }
}

impl Iterator for Items {
    type Item = io::Result<Item>;

    fn next(&mut self) -> Option<io::Result<Item>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read())
    }
}

/// Merges items of two sources, both in key order.
#[derive(Debug)]
pub struct Merged<A, B>
where
    A: Iterator<Item = io::Result<Item>>,
    B: Iterator<Item = io::Result<Item>>,
{
    a: std::iter::Peekable<A>,
    b: std::iter::Peekable<B>,
}

/// Merges two sources.
pub fn merged<A, B>(a: A, b: B) -> Merged<A, B>
where
    A: Iterator<Item = io::Result<Item>>,
    B: Iterator<Item = io::Result<Item>>,
{
    Merged { a: a.peekable(), b: b.peekable() }
}

impl<A, B> Iterator for Merged<A, B>
where
    A: Iterator<Item = io::Result<Item>>,
    B: Iterator<Item = io::Result<Item>>,
{
    type Item = io::Result<Item>;

    fn next(&mut self) -> Option<io::Result<Item>> {
        match (self.a.peek(), self.b.peek()) {
            (Some(Ok((a, _))), Some(Ok((b, _)))) if b < a => self.b.next(),
            (None, _) | (_, Some(Err(_))) => self.b.next(),
            _ => self.a.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_format::Kind;

    use super::*;

    fn key(number: u64) -> Key {
        Key::new(number, Kind::EXTENT_ITEM, 4096)
    }

    /// SP1, also for items that come after a reading, and the sizes count all of them.
    #[test]
    fn gives_items_back_in_order() {
        let mut spool = Spool::new().expect("a temporary file");
        let mut expected = Vec::new();
        for number in 0..2000_u64 {
            let payload = vec![number as u8; (number % 500) as usize];
            spool.push(&key(number), &payload).expect("a write");
            expected.push((key(number), payload));
            if number % 700 == 0 {
                let found: Vec<Item> =
                    spool.items().expect("a reading").map(|item| item.expect("an item")).collect();
                assert!(found == expected, "SP1 after {number}");
            }
        }
        let found = spool.items().expect("a reading").map(|item| item.expect("an item"));
        assert!(found.eq(expected.iter().cloned()), "SP1");
        let bytes: usize = expected.iter().map(|(_, payload)| payload.len() + ITEM_LEN).sum();
        let sizes = spool.sizes();
        assert_eq!((sizes.count, sizes.bytes), (2000, bytes as u64));
        assert_eq!(sizes.largest, (499 + ITEM_LEN) as u64);
    }

    /// Two sources become one, in the order of the keys.
    #[test]
    fn merges_two_sources() {
        let items = |numbers: &[u64]| {
            let items: Vec<io::Result<Item>> =
                numbers.iter().map(|number| Ok((key(*number), Vec::new()))).collect();
            items.into_iter()
        };
        let both = merged(items(&[1, 4, 5]), items(&[2, 3, 9]));
        let found: Vec<u64> = both.map(|item| item.expect("an item").0.objectid).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 9]);
    }
}
