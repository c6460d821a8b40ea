# Runs the plan's test binaries one after the other and reports each result on a line that starts with @@.
# It is the guest's process 1 and ends by powering the machine off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb RUST_BACKTRACE=0
# A guest has no helper that loads modules on demand, so load everything that the tests use.
for module in veth bridge macvlan 8021q vrf vxlan dummy ipip tun sch_ingress cls_bpf cls_u32 cls_matchall act_bpf act_gact \
    br_netfilter nf_tables nft_compat nft_chain_nat nf_nat nf_conntrack xt_comment xt_MASQUERADE xt_conntrack \
    xt_addrtype xt_mark ip_tables iptable_nat iptable_filter ip6_tables ip6table_nat ip6table_filter unix_diag; do
    modprobe --quiet "$module" || echo "module $module: not available"
done
ulimit -n 65536
echo "@@ booted $(uname -r)"
while IFS='|' read -r name dir limit program arguments; do
    case "$name" in env) export "$dir"; continue ;; '') continue ;; esac
    cd "$dir" || continue
    echo "@@ begin $name"
    began=$SECONDS
    # shellcheck disable=SC2086 # the arguments are words without spaces
    CARGO_MANIFEST_DIR="$dir" timeout --kill-after=10 "$limit" "$program" $arguments < /dev/null 2>&1
    status=$?
    echo
    echo "@@ end $name $status $((SECONDS - began))"
done < "$1"
echo "@@ done"
sync
/bin/busybox poweroff -f
