//! What a resolving event takes from an earlier event about its subject.

use std::sync::Arc;

use crate::{AnyEvent, DiagnosisData, TimelineEntry};

impl AnyEvent {
    /// Adds what `earlier`, an event about the same subject, knew and this one does not: the diagnosis with its timeline, and pods.
    /// After a restart of the agent these are unknown until they are collected again.
    pub fn complete_from(&mut self, earlier: &Self) {
        match (self, earlier) {
            (Self::Conflict(event), Self::Conflict(earlier)) => {
                let (data, earlier) = (&mut Arc::make_mut(event).data, &earlier.data);
                explain(
                    (&mut data.diagnosis, &mut data.timeline),
                    (&earlier.diagnosis, &earlier.timeline),
                );
                for claimant in data.claimants.iter_mut().filter(|c| c.pod.is_none()) {
                    let known = earlier.claimants.iter().find(|known| {
                        (known.ifindex, &known.device) == (claimant.ifindex, &claimant.device)
                            && known.node == claimant.node
                    });
                    if let Some(pod) = known.and_then(|known| known.pod.clone()) {
                        claimant.pod = Some(pod);
                        claimant.pod_unknown_because = None;
                    }
                }
            }
            (Self::Anomaly(event), Self::Anomaly(earlier)) => {
                let (data, earlier) = (&mut Arc::make_mut(event).data, &earlier.data);
                explain(
                    (&mut data.diagnosis, &mut data.timeline),
                    (&earlier.diagnosis, &earlier.timeline),
                );
                let is_same = (data.ifindex, &data.device) == (earlier.ifindex, &earlier.device);
                if data.pod.is_none() && earlier.pod.is_some() && is_same {
                    data.pod.clone_from(&earlier.pod);
                    data.pod_unknown_because = None;
                }
            }
            _ => {}
        }
    }
}

type Diagnosis = Option<Arc<DiagnosisData>>;
type Timeline = Option<Arc<[TimelineEntry]>>;

fn explain(
    (diagnosis, timeline): (&mut Diagnosis, &mut Timeline),
    (known, known_timeline): (&Diagnosis, &Timeline),
) {
    if diagnosis.is_none() && known.is_some() {
        diagnosis.clone_from(known);
        timeline.clone_from(known_timeline);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)] // a test that cannot set itself up fails

    use detector_engine::diagnosis::Cause;

    use super::*;
    use crate::samples;

    #[test]
    fn cause_and_pods_of_an_earlier_event_are_kept() {
        let mut earlier = samples::raised("10.0.0.1");
        let cause = Arc::new(samples::diagnosis(Cause::IpamStateWiped, 1));
        earlier.data.diagnosis = Some(Arc::clone(&cause));
        let mut event = samples::resolved("10.0.0.1");
        event.data.claimants[0].pod = None;
        event.data.claimants[0].pod_unknown_because = Some("no answer yet".into());
        // Another device than any of the earlier event.
        event.data.claimants[1].pod = None;
        event.data.claimants[1].ifindex += 100;
        let mut event = AnyEvent::from(event);
        event.complete_from(&earlier.clone().into());
        let AnyEvent::Conflict(event) = event else {
            panic!("{event:?}")
        };
        assert_eq!(event.data.diagnosis, Some(cause));
        assert_eq!(event.data.claimants[0].pod, earlier.data.claimants[0].pod);
        assert_eq!(event.data.claimants[0].pod_unknown_because, None);
        assert_eq!(event.data.claimants[1].pod, None);
    }

    #[test]
    fn newer_cause_is_not_replaced() {
        let mut earlier = samples::drift("10.0.0.1");
        let diagnosis = |cause| Some(Arc::new(samples::diagnosis(cause, 1)));
        earlier.data.diagnosis = diagnosis(Cause::Unknown);
        let mut event = samples::drift("10.0.0.1");
        event.data.diagnosis = diagnosis(Cause::IpamStateWiped);
        event.data.pod = None;
        let mut completed = AnyEvent::from(event.clone());
        completed.complete_from(&earlier.clone().into());
        event.data.pod = earlier.data.pod;
        assert_eq!(completed, event.into());
    }
}
