//! Ethernet addresses for frames and devices.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, bail};

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The target hardware address of an ARP request, which is unknown.
    pub const ZERO: Self = Self([0; 6]);

    /// A locally administered unicast address that differs for every `number`.
    #[must_use]
    pub fn local(number: u32) -> Self {
        let [a, b, c, d] = number.to_be_bytes();
        Self([0x02, 0x1c, a, b, c, d])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts
                .next()
                .with_context(|| format!("{text:?} is not a MAC address"))?;
            *byte = u8::from_str_radix(part, 16)
                .with_context(|| format!("{text:?} is not a MAC address"))?;
        }
        if parts.next().is_some() {
            bail!("{text:?} is longer than a MAC address");
        }
        Ok(Self(bytes))
    }
}
