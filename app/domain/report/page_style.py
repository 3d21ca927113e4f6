"""The style sheet of the HTML report: light and dark by the reader's setting, printable, no requests."""

STYLE = """
:root{--bg:#fbfbfa;--panel:#fff;--ink:#1d2126;--soft:#5b6470;--line:#d9dde2;--grid:#e8ebee;
--accent:#0b5cad;
--good:#1b7f4b;--bad:#b3261e;--wait:#8a5a00;--sesoi:#c9b25a;--arm0:#0072b2;--arm1:#d55e00;--arm2:#009e73;
--arm3:#a5538a;--arm4:#6b5b00;--arm5:#3a86c8;--arm6:#7a7a7a;--arm7:#8c3b2f;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--panel:#1c2024;--ink:#e7eaee;--soft:#9aa4b0;
--line:#343a41;
--grid:#2a2f35;--accent:#7ab8f5;--good:#63c994;--bad:#f2857d;--wait:#e0b35a;--sesoi:#8f7f3a;
--arm0:#56b4e9;
--arm1:#f0914d;--arm2:#3fc79a;--arm3:#d894c2;--arm4:#d8c84a;--arm5:#9cc9ee;--arm6:#b0b0b0;--arm7:#d98c80}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;margin:.2rem 0 1rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{margin:.5rem 0}small,.soft,figcaption{color:var(--soft)}code{font-size:.92em}
.verdict,figure,.box{background:var(--panel);border:1px solid var(--line);border-radius:8px;
padding:1rem 1.2rem;margin:1rem 0}
.verdict{border-left:6px solid var(--wait)}.verdict.good{border-left-color:var(--good)}
.verdict.bad{border-left-color:var(--bad)}.verdict .code{font-weight:650;letter-spacing:.02em}
.verdict .sentence{font-size:1.15rem;margin:.3rem 0 .6rem}
.flag{display:inline-block;border:1px solid var(--line);border-radius:4px;padding:0 .4rem;
margin:0 .3rem .3rem 0;font-size:.85rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.5rem 1.2rem;
margin:1rem 0}
dl.facts dt{color:var(--soft);font-size:.85rem}dl.facts dd{margin:0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;
font-size:.93rem}
th,td{text-align:right;padding:.35rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,td.text,th.text{text-align:left}td.text{white-space:normal}
th{color:var(--soft);font-weight:600}
tr.exploratory td{color:var(--soft);font-style:italic}
.pass{color:var(--good)}.fail,.harm{color:var(--bad)}.unchecked,.unproven{color:var(--wait)}
figure{margin:1rem 0}figure svg{width:100%;height:auto;display:block}figcaption{font-size:.9rem;
margin-top:.4rem}
.legend span{display:inline-block;margin-right:1rem}.legend i{display:inline-block;width:.8rem;
height:.8rem;border-radius:50%;margin-right:.35rem}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .tick{fill:var(--soft)}
svg .grid{stroke:var(--grid)}
svg polyline{fill:none}svg .zero{stroke:var(--ink)}svg .join{stroke:var(--soft);opacity:.4}
svg .bar{stroke-width:3}
svg .thin{stroke-width:1;opacity:.35}svg .curve{stroke-width:2.4}svg .band{opacity:.16;stroke:none}
svg .sesoi{fill:var(--sesoi);opacity:.28}svg .interval{stroke:var(--ink);stroke-width:1.4}
svg .interval.wide{stroke-width:5;opacity:.55}
svg .point{fill:var(--ink)}svg .boundary{stroke:var(--bad);stroke-dasharray:6 4;stroke-width:2}
svg path.mark{fill:none;stroke-width:2.2}
@media print{body{background:#fff}.verdict,figure{break-inside:avoid}}
""" + "".join(
    f"svg .arm{i}{{stroke:var(--arm{i})}}svg circle.arm{i},svg polygon.arm{i}{{fill:var(--arm{i})}}"
    f".legend .arm{i}{{background:var(--arm{i})}}"
    for i in range(8)
)
