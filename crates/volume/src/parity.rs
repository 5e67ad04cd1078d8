//! Parity, and the reconstruction of lost bytes from it.
//!
//! # On disk
//!
//! A row of RAID5 has one unit P, the sum of its data units. A row of RAID6 also has Q, in which
//! unit `i` counts `2^i` times. Sums and products are those of the field of 256 elements with the
//! polynomial 0x11D.

/// The units of a row: its data units in order, then P, then Q if the row has a Q. All units have
/// one length. A lost unit is `None`.
pub(crate) struct Row {
    pub(crate) units: Vec<Option<Vec<u8>>>,
    /// How many of the units are parity: one or two.
    pub(crate) parity: usize,
}

const fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1D;
        }
        b >>= 1;
    }
    product
}

/// 2 to the power of `exponent`.
fn power(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |value, _| times(value, 2))
}

/// The multiplicative inverse: the 254th power.
fn inverse(value: u8) -> u8 {
    (0..254).fold(1, |product, _| times(product, value))
}

/// Adds `factor` times `from` to `into`.
fn add(into: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        into.iter_mut().zip(from).for_each(|(a, b)| *a ^= b);
        return;
    }
    let mut table = [0; 256];
    for (value, product) in (0..=u8::MAX).zip(&mut table) {
        *product = times(value, factor);
    }
    into.iter_mut().zip(from).for_each(|(a, b)| *a ^= table[usize::from(*b)]);
}

/// Multiplies each of eight elements by two.
fn double(eight: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let carry = (eight & HIGH) >> 7;
    ((eight & !HIGH) << 1) ^ (carry * 0x1D)
}

/// Computes P, and Q if `parity` is 2. All data units have one length, which is a multiple of
/// eight.
pub(crate) fn parity_of(data: &[&[u8]], parity: usize) -> Vec<Vec<u8>> {
    let len = data.first().map_or(0, |unit| unit.len());
    let mut p = data.last().map_or_else(Vec::new, |unit| unit.to_vec());
    let mut sums = Vec::with_capacity(parity);
    let others = || data.iter().rev().skip(1);
    if parity > 1 {
        let mut q = p.clone();
        for unit in others() {
            for (sum, from) in q.chunks_exact_mut(8).zip(unit.chunks_exact(8)) {
                let (Some(old), Some(from)) = (sum.first_chunk(), from.first_chunk()) else {
                    continue;
                };
                let new = double(u64::from_ne_bytes(*old)) ^ u64::from_ne_bytes(*from);
                sum.copy_from_slice(&new.to_ne_bytes());
            }
        }
        sums.push(q);
    }
    for unit in others() {
        add(&mut p, unit, 1);
    }
    assert!(len.is_multiple_of(8) && data.iter().all(|unit| unit.len() == len), "units of {len}");
    sums.insert(0, p);
    sums
}

impl Row {
    fn data(&self) -> usize {
        self.units.len() - self.parity
    }

    /// P, or Q, minus the contributions of the data units that are not lost.
    fn rest(&self, parity: usize) -> Option<Vec<u8>> {
        let data = self.data();
        let mut rest = self.units.get(data + parity)?.clone()?;
        for (index, unit) in self.units[..data].iter().enumerate() {
            if let Some(unit) = unit {
                add(&mut rest, unit, if parity == 0 { 1 } else { power(index) });
            }
        }
        Some(rest)
    }

    /// The data unit `wanted`, or `None` when too much is lost.
    pub(crate) fn rebuild(&self, wanted: usize) -> Option<Vec<u8>> {
        let lost: Vec<usize> =
            (0..self.data()).filter(|index| self.units[*index].is_none()).collect();
        match lost[..] {
            [only] if only == wanted => self.rest(0).or_else(|| {
                let mut rest = vec![0; self.rest(1)?.len()];
                add(&mut rest, &self.rest(1)?, inverse(power(wanted)));
                Some(rest)
            }),
            [first, second] if first == wanted || second == wanted => {
                let other = if first == wanted { second } else { first };
                let (p, q) = (self.rest(0)?, self.rest(1)?);
                // p = wanted + other, q = 2^w wanted + 2^o other.
                let factor = inverse(power(wanted) ^ power(other));
                let mut sum = q;
                add(&mut sum, &p, power(other));
                let mut found = vec![0; sum.len()];
                add(&mut found, &sum, factor);
                Some(found)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_base::Rng;

    fn row(data: usize, parity: usize, rng: &mut Rng) -> Row {
        let mut units: Vec<Vec<u8>> = Vec::new();
        for _ in 0..data {
            let mut unit = vec![0; 64];
            rng.fill(&mut unit);
            units.push(unit);
        }
        for which in 0..parity {
            let mut sum = vec![0; 64];
            for (index, unit) in units[..data].iter().enumerate() {
                add(&mut sum, unit, if which == 0 { 1 } else { power(index) });
            }
            units.push(sum);
        }
        let slices: Vec<&[u8]> = units[..data].iter().map(Vec::as_slice).collect();
        assert_eq!(parity_of(&slices, parity), units[data..]);
        Row { units: units.into_iter().map(Some).collect(), parity }
    }

    /// Every pair of units that can be lost is rebuilt.
    #[test]
    fn any_two_are_rebuilt() {
        let mut rng = Rng::new(7);
        for data in 1..9 {
            for parity in 1..=2 {
                let whole = row(data, parity, &mut rng);
                for first in 0..data {
                    for second in 0..data + parity {
                        let mut units = whole.units.clone();
                        units[first] = None;
                        units[second] = None;
                        let lossy = Row { units, parity };
                        let lost = if first == second { 1 } else { 2 };
                        let found = lossy.rebuild(first);
                        if lost <= parity {
                            assert_eq!(
                                found, whole.units[first],
                                "{data}+{parity}: {first} {second}"
                            );
                        } else {
                            assert_eq!(found, None);
                        }
                    }
                }
            }
        }
    }

    /// The field is the one that Linux's RAID6 uses.
    #[test]
    fn the_field_is_the_usual_one() {
        assert_eq!(power(8), 0x1D);
        assert_eq!(times(0x80, 2), 0x1D);
        assert_eq!(times(inverse(0x53), 0x53), 1);
    }
}
