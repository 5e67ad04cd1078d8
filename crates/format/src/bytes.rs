//! Reads and writes little-endian fields. No access can pass the end of the bytes.

use crate::{Error, Result};

/// Walks over bytes; every step is checked.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let needed = self.at.saturating_add(len);
            return Err(Error::Short { what: self.what, needed, found: self.bytes.len() });
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<()> {
        self.take(len).map(|_| ())
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.left() == 0 {
            return Ok(());
        }
        Err(Error::Length { what: self.what, expected: self.at, found: self.bytes.len() })
    }

    pub(crate) fn field(&self, field: &'static str, found: u64) -> Error {
        Error::Field { what: self.what, field, found }
    }
}

/// Fills an array with little-endian fields, in order.
pub(crate) struct Fixed<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fixed<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.at + bytes.len();
        self.bytes[self.at..end].copy_from_slice(bytes);
        self.at = end;
        self
    }

    #[inline]
    pub(crate) fn zeros(&mut self, len: usize) -> &mut Self {
        self.at += len;
        self
    }

    #[inline]
    pub(crate) fn u8(&mut self, x: u8) -> &mut Self {
        self.bytes(&[x])
    }

    #[inline]
    pub(crate) fn u32(&mut self, x: u32) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, x: u64) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    /// The filled array.
    #[inline]
    pub(crate) fn done(&self) -> [u8; N] {
        assert!(self.at == N, "all fields were put");
        self.bytes
    }
}

/// Appends little-endian fields.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(len: usize) -> Self {
        Self(Vec::with_capacity(len))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn zeros(&mut self, len: usize) -> &mut Self {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    pub(crate) fn u8(&mut self, x: u8) -> &mut Self {
        self.bytes(&[x])
    }

    pub(crate) fn u16(&mut self, x: u16) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, x: u32) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, x: u64) -> &mut Self {
        self.bytes(&x.to_le_bytes())
    }
}
