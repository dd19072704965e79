"""Modules that are stepped through, with what their values are."""

LOOP = """HloModule loop
square { p = f32[2] parameter(0)
  ROOT q = f32[2] multiply(p, p) }
inner { a = f32[2] parameter(0)
  b = f32[2] fusion(a), kind=kLoop, calls=square
  ROOT c = f32[2] add(b, a) }
body { s = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[2] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  f = f32[2] fusion(v), kind=kLoop, calls=inner
  ROOT t = (s32[], f32[2]) tuple(next, f) }
condition { u = (s32[], f32[2]) parameter(0)
  j = s32[] get-tuple-element(u), index=0
  end = s32[] constant(4)
  ROOT less = pred[] compare(j, end), direction=LT }
total { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y) }
dead { d = f32[2] parameter(0)
  ROOT e = f32[2] negate(d) }
ENTRY main { v0 = f32[2] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[2]) tuple(zero, v0)
  w = (s32[], f32[2]) while(start), condition=condition, body=body
  last = f32[2] get-tuple-element(w), index=1
  none = f32[] constant(0)
  unused = f32[2] call(v0), to_apply=dead
  ROOT r = f32[] reduce(last, none), dimensions={0}, to_apply=total }
"""
"""v ← v² + v, four times, summed; on [0.5, 0.25]."""

DEVICES = """HloModule devices, replica_count=4
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
low { p = f32[4] parameter(0)
  ROOT y = f32[4] negate(p) }
high { q = f32[4] parameter(0)
  ROOT n = f32[4] add(q, q) }
work { g = f32[4] parameter(0)
  ROOT g2 = f32[4] multiply(g, g) }
ENTRY main { x = f32[4] parameter(0)
  id = u32[] replica-id()
  number = f32[] convert(id)
  numbers = f32[4] broadcast(number), dimensions={}
  own = f32[4] add(x, numbers)
  two = u32[] constant(2)
  is = pred[] compare(id, two), direction=LT
  chosen = f32[4] conditional(is, own, own), true_computation=low, false_computation=high
  started = f32[4] all-reduce-start(chosen), replica_groups={{0,1,2,3}}, to_apply=sum
  other = f32[4] add(own, own)
  all = f32[4] all-reduce-done(started)
  begun = ((f32[4]), f32[4], s32[]) async-start(all), calls=work
  done = f32[4] async-done(begun)
  ROOT out = (f32[4], f32[4]) tuple(done, other) }
"""
"""With x = 1: own = 1 + d; all = −1 − 2 + 2·3 + 2·4 = 11; done = 121."""

SOURCES = """HloModule sources
FileNames
1 "/home/me/model/net.py"
FunctionNames
1 "layer"
FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=4 end_column=20}
2 {file_name_id=1 function_name_id=1 line=30 end_line=30 column=4 end_column=20}
StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

ENTRY main { x = f32[2] parameter(0)
  a = f32[2] add(x, x), metadata={op_name="jit(f)/layer/add" stack_frame_id=1}
  ROOT b = f32[2] exponential(a), metadata={op_name="jit(f)/layer/exp" stack_frame_id=2} }
"""
