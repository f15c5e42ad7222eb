//! Parses what servers say about other servers: CLUSTER NODES and the replicas in INFO.

/// A node as CLUSTER NODES lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterNode {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The id of its primary, for a replica.
    pub(crate) replica_of: Option<String>,
    pub(crate) is_reachable: bool,
    pub(crate) has_slots: bool,
}

/// `queried` is the host that replied, for a node that does not know its own address.
pub(crate) fn cluster_nodes(text: &str, queried: &str) -> Vec<ClusterNode> {
    text.lines().filter_map(|line| cluster_node(line, queried)).collect()
}

/// A line such as `ID ip:port@bus,name flags primary ping pong epoch link slots…`.
fn cluster_node(line: &str, queried: &str) -> Option<ClusterNode> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [id, location, flags, primary, _ping, _pong, _epoch, link, slots @ ..] = words.as_slice() else {
        return None;
    };
    let has = |flag: &str| flags.split(',').any(|found| found == flag);
    if has("noaddr") || has("handshake") {
        return None;
    }
    let address = location.split(',').next()?.split('@').next()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(ClusterNode {
        id: (*id).to_owned(),
        host: if host.is_empty() { queried.to_owned() } else { host.to_owned() },
        port: port.parse().ok()?,
        replica_of: (!has("master")).then(|| (*primary).to_owned()),
        is_reachable: !has("fail") && (has("myself") || *link == "connected"),
        has_slots: slots.iter().any(|slot| !slot.starts_with('[')),
    })
}

/// The first slot of each range of the node that replied.
pub(crate) fn first_slots(text: &str) -> Vec<u16> {
    let own = text.lines().find(|line| line.contains("myself,")).unwrap_or_default();
    let ranges = own.split_ascii_whitespace().skip(8).filter(|range| !range.starts_with('['));
    ranges.filter_map(|range| range.split('-').next()?.parse().ok()).collect()
}

/// The replicas that are online, from INFO replication.
pub(crate) fn online_replicas(info: &str) -> Vec<(String, u16)> {
    let replica = |line: &str| {
        let (name, fields) = line.trim().split_once(':')?;
        let number = name.strip_prefix("slave")?;
        let is_replica = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let field = |wanted: &str| {
            let mut fields = fields.split(',').filter_map(|field| field.split_once('='));
            fields.find(|(name, _)| *name == wanted).map(|(_, value)| value)
        };
        if !is_replica || field("state") != Some("online") {
            return None;
        }
        Some((field("ip")?.to_owned(), field("port")?.parse().ok()?))
    };
    info.lines().filter_map(replica).collect()
}

/// A field of INFO.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = info.lines().filter_map(|line| line.trim().split_once(':'));
    fields.find(|(found, _)| *found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nodes_and_replicas() {
        let text = "\
a1 10.0.0.1:7000@17000,host myself,master - 0 0 1 connected 0-5460 [93-<-c3]
b2 :7001@17001 slave a1 0 0 1 connected
c3 10.0.0.3:7002@17002 master,fail - 0 0 2 disconnected 5461-16383
d4 :0@0 master,noaddr - 0 0 3 disconnected 1
short line";
        let nodes = cluster_nodes(text, "seed");
        let summary: Vec<_> = nodes
            .iter()
            .map(|node| {
                (node.host.as_str(), node.port, node.replica_of.as_deref(), node.is_reachable, node.has_slots)
            })
            .collect();
        assert_eq!(
            summary,
            [
                ("10.0.0.1", 7000, None, true, true),
                ("seed", 7001, Some("a1"), true, false),
                ("10.0.0.3", 7002, None, false, true)
            ]
        );
        assert_eq!(first_slots(text), [0]);
        let info = "role:master\r\nslave0:ip=::1,port=1,state=online,offset=1\r\nslave1:ip=b,port=2,state=wait_bgsave\r\nslave_x:1";
        assert_eq!(online_replicas(info), [("::1".to_owned(), 1)]);
        assert_eq!(info_field(info, "role"), Some("master"));
    }
}
