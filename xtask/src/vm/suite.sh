# Runs the plan's tests one binary after the other and says how each ended, on lines that begin with @@.
# It is the guest's process 1: it ends by switching the machine off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb RUST_BACKTRACE=0
# A guest has no helper that loads modules when they are asked for, so all that the tests use are loaded here.
for module in veth bridge macvlan 8021q vxlan dummy ipip tun sch_ingress cls_bpf cls_u32 cls_matchall act_bpf act_gact \
    br_netfilter nf_tables nft_compat nft_chain_nat nf_nat nf_conntrack xt_comment xt_MASQUERADE xt_conntrack \
    xt_addrtype xt_mark ip_tables iptable_nat iptable_filter ip6_tables ip6table_nat ip6table_filter unix_diag; do
    modprobe --quiet "$module" || echo "module $module: not there"
done
ulimit -n 65536
echo "@@ booted $(uname -r)"
while IFS='|' read -r name folder limit program arguments; do
    case "$name" in env) export "$folder"; continue ;; '') continue ;; esac
    cd "$folder" || continue
    echo "@@ begin $name"
    began=$SECONDS
    # shellcheck disable=SC2086 # the arguments are words without spaces
    CARGO_MANIFEST_DIR="$folder" timeout --kill-after=10 "$limit" "$program" $arguments < /dev/null 2>&1
    status=$?
    echo
    echo "@@ end $name $status $((SECONDS - began))"
done < "$1"
echo "@@ done"
sync
/bin/busybox poweroff -f
