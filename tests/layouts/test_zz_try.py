from pathlib import Path
import os
def test_try(look, samples):
    base=Path(os.environ.get("TRYBASE") or samples)
    import subprocess
    for d in sorted(base.iterdir()):
        subs=[x for x in sorted(d.iterdir()) if x.is_dir()] or [d]
        if not subs: continue
        for s in subs:
            try: r=look(s)
            except Exception as e:
                print("ERR",s.relative_to(base),repr(e)); raise
            print("==",s.relative_to(base), [ (p.path,p.text,p.names) for p in r.survey.pointers], [a.path for a in r.survey.staging])
            for g in r.sightings:
                print("  ",g.name,g.found.variant,g.layout,g.step,g.step_kind.value,"W",g.world_size,g.reshardable,[p.value for p in g.purposes],len(g.shards),len(g.expected),"extras",g.extras[:4],g.metrics, g.common_file)
                for f in g.findings: print("      F",f.reason.value,f.path,"|",f.evidence)
                for f in g.notes: print("      N",f.kind,f.path,"|",f.text)
