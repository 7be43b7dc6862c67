import { type RefObject } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'

const NEAR = 64 // px from the bottom that count as being there

/**
 * Keeps an element scrolled to its end while it grows, as long as the person is there. Any scrolling up lets go;
 * coming back to the end, or `toEnd`, takes hold again.
 */
export function useFollow(element: RefObject<HTMLElement | null>, content: RefObject<HTMLElement | null>) {
  const follows = useRef(true)
  const lastTop = useRef(0)
  const [isAway, setAway] = useState(false)
  const toEnd = () => {
    follows.current = true
    setAway(false)
    element.current!.scrollTop = element.current!.scrollHeight
  }
  useEffect(() => {
    const box = element.current!
    const onScroll = () => {
      const distance = box.scrollHeight - box.clientHeight - box.scrollTop
      if (box.scrollTop < lastTop.current - 1 && distance > 1) follows.current = false
      else if (distance <= NEAR) follows.current = true
      lastTop.current = box.scrollTop
      setAway(!follows.current && distance > NEAR)
    }
    const onWheel = (event: WheelEvent) => {
      if (event.deltaY < 0) follows.current = false
    }
    const grown = new ResizeObserver(() => {
      if (follows.current) box.scrollTop = box.scrollHeight
    })
    box.addEventListener('scroll', onScroll, { passive: true })
    box.addEventListener('wheel', onWheel, { passive: true })
    grown.observe(content.current!)
    grown.observe(box)
    return () => {
      grown.disconnect()
      box.removeEventListener('scroll', onScroll)
      box.removeEventListener('wheel', onWheel)
    }
  }, [])
  return { isAway, toEnd }
}
